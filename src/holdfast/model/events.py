"""Facts that reach the core. Each carries the moment it was observed, in seconds of the agent's monotonic clock."""

from __future__ import annotations

import msgspec

from holdfast.model.exits import Exit, Raised
from holdfast.model.ids import Incarnation, ProcessId, Step
from holdfast.model.spec import Terms


class Event(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    at: float


class Submitted(Event, frozen=True):
    terms: Terms


class NurseryWarm(Event, frozen=True):
    """The nursery has imported what it was told to. A new generation holds more than the last."""

    generation: int


class NurseryLost(Event, frozen=True):
    """It died, or became unfit to fork. `final`: another would end the same way."""

    reason: str
    final: bool = False


class ProcessWarm(Event, frozen=True):
    id: ProcessId
    pid: int


class ProcessStillborn(Event, frozen=True):
    """Asked for and never came."""

    id: ProcessId
    reason: str


class ProcessLost(Event, frozen=True):
    """It will execute nothing more. Its memory may take much longer to be given back."""

    id: ProcessId
    seen_at: float  # when the first sign came, before the agent could turn to it
    sign: str
    exit: Exit
    evidence: tuple[str, ...] = ()
    listening: tuple[ProcessId, ...] = ()  # survivors that could still act on a SIGTERM
    step: Step | None = None  # the job's newest step on any board
    chance: float = 0.5  # in [0, 1): the randomness that the core itself must not have


class ProcessGone(Event, frozen=True):
    """The kernel has given everything back and the status was collected."""

    id: ProcessId
    exit: Exit


class ProcessStopped(Event, frozen=True):
    id: ProcessId
    signal: int


class ProcessContinued(Event, frozen=True):
    id: ProcessId


class WorkerRaised(Event, frozen=True):
    """An exception has left the script; the process is still on its way out."""

    id: ProcessId
    error: Raised
    listening: tuple[ProcessId, ...] = ()
    step: Step | None = None
    chance: float = 0.5


class WorkerEnded(Event, frozen=True):
    """The script came to its end. With code 0 this rank has committed its work."""

    id: ProcessId
    code: int
    listening: tuple[ProcessId, ...] = ()


class WorkerStepped(Event, frozen=True):
    """A worker's first optimizer step in this incarnation."""

    id: ProcessId
    script_at: float
    group_at: float | None
    restored_at: float | None
    resumed_from: Step | None
    basis: str


class Learned(Event, frozen=True):
    """What the script imports is known."""

    modules: int


class SourcesChanged(Event, frozen=True):
    """Files of the script are not what they were when the last incarnation started."""

    files: tuple[str, ...]


class Progressed(Event, frozen=True):
    """A look at the boards."""

    step: Step | None
    basis: str


class StoreOpen(Event, frozen=True):
    incarnation: Incarnation
    port: int


class StoreFailed(Event, frozen=True):
    incarnation: Incarnation
    reason: str


class TimerFired(Event, frozen=True):
    timer: str


class StopAsked(Event, frozen=True):
    signal: int


AnyEvent = (
    Submitted
    | NurseryWarm
    | NurseryLost
    | ProcessWarm
    | ProcessStillborn
    | ProcessLost
    | ProcessGone
    | ProcessStopped
    | ProcessContinued
    | WorkerRaised
    | WorkerEnded
    | WorkerStepped
    | Learned
    | SourcesChanged
    | Progressed
    | StoreOpen
    | StoreFailed
    | TimerFired
    | StopAsked
)
