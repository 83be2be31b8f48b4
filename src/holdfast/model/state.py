"""Everything the core remembers of a job. It can be rebuilt from the journal and from nothing else."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast.model.exits import Casualty
from holdfast.model.ids import Incarnation, ProcessId, Rank, Step
from holdfast.model.spec import Terms


class Status(StrEnum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    RECOVERING = "RECOVERING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    LOST = "LOST"


class Phase(StrEnum):
    """What the job is waiting for."""

    NEW = "new"
    WARMING = "warming"  # the nursery imports
    RELEASING = "releasing"  # the last incarnation's processes must be dead
    RESTING = "resting"  # back-off
    MUSTERING = "mustering"  # a warm process for every rank, and an empty store
    TRAINING = "training"
    LEAVING = "leaving"  # every rank has finished; its processes are on their way out
    STOPPING = "stopping"  # the user asked; handlers run
    FAILING = "failing"  # nothing more will be tried; waiting for the dead
    OVER = "over"


class Origin(StrEnum):
    """The rungs of the ladder on one machine, by how a process comes to be."""

    FORK = "fork"
    COLD = "cold"


class Purpose(StrEnum):
    SPARE = "spare"
    WORKER = "worker"
    STORE = "store"


class Stage(StrEnum):
    STARTING = "starting"
    WARM = "warm"
    RUNNING = "running"
    FINISHED = "finished"  # the script ended well
    RAISED = "raised"  # the script ended badly; exit handlers run
    CONDEMNED = "condemned"  # SIGKILL sent
    DEAD = "dead"  # executes nothing more


class Process(msgspec.Struct, frozen=True):
    id: ProcessId
    purpose: Purpose
    origin: Origin
    stage: Stage = Stage.STARTING
    generation: int = 0  # of the nursery it was forked from
    pid: int | None = None
    incarnation: Incarnation = Incarnation(0)
    rank: Rank | None = None
    was_spare: bool = False
    seat: Rank | None = None  # the rank a spare is prepared for
    asked: bool = False  # SIGTERM sent
    signalled_at: float | None = None  # when we first sent it a signal: a death seen before that is not our doing
    stopped_at: float | None = None
    stepped: bool = False


class NurseryStage(StrEnum):
    ABSENT = "absent"
    STARTING = "starting"
    WARM = "warm"
    GIVEN_UP = "given_up"


class Nursery(msgspec.Struct, frozen=True):
    stage: NurseryStage = NurseryStage.ABSENT
    generation: int = 0
    losses: int = 0


class Store(msgspec.Struct, frozen=True):
    incarnation: Incarnation = Incarnation(0)
    port: int | None = None
    last_port: int | None = None  # kept from incarnation to incarnation where it can be
    keeper: ProcessId | None = None
    asked: bool = False
    lost_in: Incarnation = Incarnation(0)  # the newest incarnation that lost its store while it needed it
    lost_at: float = 0.0


class Blame(StrEnum):
    """Whose failure it was, as far as it decides what to do."""

    INFRASTRUCTURE = "infrastructure"
    USER = "user"
    NODE = "node"


class Verdict(msgspec.Struct, frozen=True):
    symptom: str
    blame: Blame
    suspect: Rank | None
    confidence: str
    sentence: str
    evidence: tuple[str, ...] = ()
    signature: str = ""


class Remedy(msgspec.Struct, frozen=True):
    """What was done: the rung each rank took."""

    kind: str  # restart, stop
    spares: int = 0
    forks: int = 0
    colds: int = 0
    sentence: str = ""


class Incident(msgspec.Struct, frozen=True):
    """From the first symptom to the first step of a whole world, or to the end of the job."""

    number: int
    incarnation: Incarnation  # the one that failed
    opened_at: float
    casualties: tuple[Casualty, ...] = ()
    attempts: int = 1  # incarnations it took to recover, or tried to
    verdict: Verdict | None = None
    remedy: Remedy | None = None
    decided_at: float | None = None
    released_at: float | None = None
    assigned_at: float | None = None
    regrouped_at: float | None = None
    restored_at: float | None = None
    recovered_at: float | None = None
    step_before: Step | None = None
    resumed_from: Step | None = None
    outcome: str = "open"  # open, recovered, failed, stopped, completed
    files_changed: tuple[str, ...] = ()

    @property
    def steps_lost(self) -> int | None:
        if self.step_before is None or self.resumed_from is None:
            return None
        return max(0, self.step_before - self.resumed_from)


class Budget(msgspec.Struct, frozen=True):
    """Restarts left. Progress earns them back; a limit that the user gave does not move."""

    restarts: int = 0
    tokens: int = 0
    refilled_at: Step = Step(0)  # the step up to which progress has been paid out
    repeats: int = 0  # failures in a row without progress in between
    last_signature: str = ""
    last_best: Step = Step(-1)


class JobState(msgspec.Struct, frozen=True):
    terms: Terms = Terms(world=0)
    status: Status = Status.PENDING
    phase: Phase = Phase.NEW
    incarnation: Incarnation = Incarnation(0)
    processes: dict[str, Process] = {}
    births: int = 0  # process ids handed out
    spare_failures: int = 0
    spares_wanted: bool = False
    learned: bool = False
    nursery: Nursery = Nursery()
    store: Store = Store()
    budget: Budget = Budget()
    incidents: dict[str, Incident] = {}
    open_incident: int = 0  # number, 0: none
    best_step: Step | None = None
    stepped_ever: bool = False
    started_at: float = 0.0
    training_at: float = 0.0  # when this incarnation's workers were assigned
    timers: dict[str, float] = {}
    stop_signal: int = 0
    exit_code: int | None = None
    reason: str = ""
