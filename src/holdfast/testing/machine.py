"""The simulated node: processes that are born, run a script and die; the nursery; stores. It is the truth.

It decides nothing about the job and knows nothing of the core's state: it does what it is told, has accidents, and
reports what an agent could observe, as late as an agent would. Invariants compare the core's belief with it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import partial
from random import Random

from holdfast.model import events
from holdfast.model.actions import Assign
from holdfast.model.events import AnyEvent
from holdfast.model.exits import Exit, Raised
from holdfast.model.ids import Incarnation, ProcessId, Step
from holdfast.model.spec import Terms
from holdfast.model.state import Origin
from holdfast.testing.clock import Clock
from holdfast.testing.schedules import Script

COLLECTIVE_TIMEOUT_SECONDS = 60.0
SIGSEGV = 11
SIGTERM = 15

Report = Callable[[float, Callable[[float], AnyEvent | None]], None]


class Life(IntEnum):
    COMING = 0
    WARM = 1
    EXECUTING = 2
    LEAVING = 3  # the script has ended, well or not; exit handlers run
    DEAD = 4


class Body:
    """One real process."""

    def __init__(self, id: ProcessId, origin: Origin, pid: int) -> None:
        self.id = id
        self.origin = origin
        self.pid = pid
        self.life = Life.COMING
        self.rank = -1
        self.training: Training | None = None
        self.keeps: list[Incarnation] = []
        self.stopped = False
        self.deferred: list[Callable[[], None]] = []  # what it will do when it is continued
        self.killed = False  # SIGKILL was sent by the shell
        self.raised = False
        self.finished = False
        self.end_told = False
        self.in_collective = False
        self.unkillable = False
        self.deaf = False  # to SIGTERM
        self.hidden = False  # it has become another program: no reports, and its death is noticed late
        self.death_seconds = 0.001  # from SIGKILL
        self.release_seconds = 0.05  # from death to the last byte of memory given back
        self.exit_hangs = False
        self.exit_crashes = False


class Training:
    """One incarnation's script on all ranks, in lockstep: form a group, restore, step, commit, end."""

    def __init__(self, machine: Machine, order: Assign) -> None:
        self.machine = machine
        self.incarnation = order.incarnation
        self.port = order.port
        self.agent_store = order.agent_store
        self.members: dict[int, Body] = {}
        self.arrived = 0
        self.broken = False
        self.resumed_from = self.step = machine.committed
        self.group_at = self.restored_at = self.script_at = 0.0
        self.learn = False
        self.causes: list[str] = []  # why members failed, except by the shell's hand or in consequence

    def join(self, body: Body) -> None:
        self.members[body.rank] = body
        self.script_at = self.machine.clock.now
        self.machine.later(body, 0.02, 0.3, partial(self._arrive, body))

    def _arrive(self, body: Body) -> None:
        if self.agent_store and not self.machine.keeper_of(self.incarnation, self.port):
            self.causes.append("store")
            self.machine.throw(body, "DistNetworkError", "the store does not answer")
            return
        body.in_collective = True
        self.arrived += 1
        if self.broken:
            self._suffer(body)
        elif self.arrived == self.machine.terms.world:
            self.machine.after(0.005, 0.1, self._form)

    def _form(self) -> None:
        if not self._held_up(self._form):
            self.group_at = self.machine.clock.now
            self.machine.after(0.01, 0.5, self._restore)

    def _restore(self) -> None:
        if not self._held_up(self._restore):
            self.restored_at = self.machine.clock.now
            if self.learn:
                self.machine.report(0.01, lambda at: events.Learned(at=at, modules=100))
            self.machine.clock.after(self.machine.script.step_seconds, self._step)

    def _held_up(self, resume: Callable[[], None]) -> bool:
        """Whether a member that is missing for ever or for now keeps the others from going on."""
        if self.broken:
            return True
        for body in self.members.values():
            if body.stopped:
                body.deferred.append(resume)
                return True
        return False

    def _step(self) -> None:
        if self._held_up(self._step):
            return
        machine, script = self.machine, self.machine.script
        first = self.step == self.resumed_from
        self.step += 1
        if script.countable:
            machine.newest_step = max(machine.newest_step or 0, self.step)
            if first:
                machine.on_moment("step")
                for body in self.members.values():
                    self._tell_first_step(body)
            if self.step % 2 == 0:
                step = machine.newest_step
                machine.report(0.001, lambda at: events.Progressed(at=at, step=Step(step), basis="optimizer"))
        if self.step % script.commit_every == 0:
            machine.committed = max(machine.committed, self.step)
        if machine.bug_at is not None and self.step >= machine.bug_at:
            self.causes.append("error")
            machine.throw(self.members[0], "ValueError", "always the same")
        elif self.step >= script.steps:
            for body in list(self.members.values()):
                machine.later(body, 0.0, 0.05, partial(machine.end, body, 0))
        else:
            for body in self.members.values():
                body.in_collective = machine.rng.random() < 0.6
            machine.clock.after(script.step_seconds, self._step)

    def _tell_first_step(self, body: Body) -> None:
        if body.hidden:
            return
        seen = {"script_at": self.script_at, "group_at": self.group_at, "restored_at": self.restored_at}
        self.machine.report(
            self.machine.rng.uniform(0.0001, 0.003),
            lambda at: events.WorkerStepped(
                at=at, id=body.id, resumed_from=Step(self.resumed_from), basis="optimizer", **seen
            ),
        )

    def left(self, gone: Body) -> None:
        """A member has gone before the end: the others wait for it in vain, or notice."""
        if self.broken:
            return
        self.broken = True
        for body in self.members.values():
            if body is not gone and body.life is Life.EXECUTING:
                self._suffer(body)

    def _suffer(self, body: Body) -> None:
        machine = self.machine
        body.in_collective = machine.rng.random() < 0.8
        soon = machine.rng.random() < 0.4
        least, most = (0.0005, 0.05) if soon else (COLLECTIVE_TIMEOUT_SECONDS, COLLECTIVE_TIMEOUT_SECONDS)
        machine.later(body, least, most, partial(machine.throw, body, "DistBackendError", "connection closed by peer"))

    @property
    def complete(self) -> bool:
        return len(self.members) == self.machine.terms.world and all(body.finished for body in self.members.values())


class Machine:
    def __init__(
        self,
        clock: Clock,
        rng: Random,
        report: Report,
        on_moment: Callable[[str], None],
        terms: Terms,
        script: Script,
    ) -> None:
        self.clock = clock
        self.rng = rng
        self.report = report
        self.on_moment = on_moment
        self.terms = terms
        self.script = script
        self.bodies: dict[ProcessId, Body] = {}
        self.alive: dict[ProcessId, Body] = {}
        self.trainings: dict[Incarnation, Training] = {}
        self.ports: dict[tuple[Incarnation, ProcessId | None], int] = {}
        self.committed = 0
        self.newest_step: int | None = None
        self.bug_at: int | None = None
        self.nurseries = 0
        self.nursery_up = False
        self.nursery_busy_until = 0.0
        self.generation = 0
        self.nursery_troubles: list[str] = []
        self.birth_troubles: list[str] = []
        self.store_troubles: list[str] = []
        self.unopened: list[Incarnation] = []  # whose store had trouble
        self.broken_origins: tuple[Origin, ...] = ()
        self.warm_dies = False
        self._last_port = 29500
        self._last_pid = 100

    # -- time

    def after(self, least: float, most: float, call: Callable[[], None]) -> None:
        self.clock.after(self.rng.uniform(least, most), call)

    def later(self, body: Body, least: float, most: float, call: Callable[[], None]) -> None:
        """A process does something itself, unless it is dead or stopped by then."""
        self.clock.after(self.rng.uniform(least, most), self._if_able, body, call)

    def _if_able(self, body: Body, call: Callable[[], None]) -> None:
        if body.life is Life.DEAD:
            return
        if body.stopped:
            body.deferred.append(call)
        else:
            call()

    # -- the nursery

    def start_nursery(self) -> None:
        """Another nursery; the one before, if any, is ended by whoever starts this one."""
        self.nurseries += 1
        self.nursery_up = False
        trouble = self.nursery_troubles.pop() if self.nursery_troubles else ""
        if trouble == "die":
            self.after(0.1, 1.0, partial(self._nursery_dies_young, self.nurseries))
        elif trouble != "hang":
            least, most = (60.0, 240.0) if trouble == "slow" else (0.5, 3.0)
            self.after(least, most, partial(self._nursery_comes, self.nurseries))

    def _nursery_dies_young(self, nursery: int) -> None:
        if nursery == self.nurseries:
            self.report(0.001, lambda at: events.NurseryLost(at=at, reason="exit code 1"))

    def _nursery_comes(self, nursery: int) -> None:
        if nursery == self.nurseries:
            self.nursery_up = True
            self._tell_generation(nursery)

    def _tell_generation(self, nursery: int) -> None:
        if nursery == self.nurseries and self.nursery_up:
            self.generation += 1
            generation = self.generation
            self.report(0.001, lambda at: events.NurseryWarm(at=at, generation=generation))

    def preload(self) -> None:
        if self.nursery_up:
            seconds = self.rng.uniform(0.2, 2.0)
            self.nursery_busy_until = self.clock.now + seconds
            self.clock.after(seconds, self._tell_generation, self.nurseries)

    def lose_nursery(self, reason: str) -> bool:
        """What it was forking may have been born already, or will never come."""
        if not self.nursery_up:
            return False
        self.nursery_up = False
        for body in list(self.alive.values()):
            if body.life is Life.COMING and body.origin is Origin.FORK and self.rng.random() < 0.5:
                self._bury(body)
        nursery = self.nurseries
        self.clock.after(0.001, self._tell_nursery_lost, nursery, reason)
        return True

    def _tell_nursery_lost(self, nursery: int, reason: str) -> None:
        if nursery == self.nurseries:
            self.report(0.0, lambda at: events.NurseryLost(at=at, reason=reason))

    # -- births

    def start_process(self, id: ProcessId, origin: Origin) -> None:
        self._last_pid += 1
        body = Body(id, origin, self._last_pid)
        self.bodies[id] = self.alive[id] = body
        trouble = self.birth_troubles.pop() if self.birth_troubles else ""
        if origin in self.broken_origins or (origin is Origin.FORK and not self.nursery_up):
            trouble = "fail"
        if trouble == "fail":
            self._bury(body)
            self.report(0.005, lambda at: events.ProcessStillborn(at=at, id=id, reason="fork failed"))
        elif trouble == "die":
            self.later(body, 0.001, 0.05, partial(self.die, body, Exit(signal=9)))
        elif trouble != "hang":
            wait = max(0.0, self.nursery_busy_until - self.clock.now) if origin is Origin.FORK else 0.0
            least, most = (0.004, 0.04) if origin is Origin.FORK else (0.8, 4.0)
            self.later(body, wait + least, wait + most, partial(self._warm, body, trouble == "warm_dies"))

    def _warm(self, body: Body, dies: bool) -> None:
        if body.life is not Life.COMING:
            return
        body.life = Life.WARM
        self.report(0.0005, lambda at: events.ProcessWarm(at=at, id=body.id, pid=body.pid))
        if dies or self.warm_dies:
            self.later(body, 0.0, 0.02, partial(self._die_if_idle, body))

    def _die_if_idle(self, body: Body) -> None:
        if body.life is Life.WARM and not body.keeps:
            self.die(body, Exit(signal=9))

    # -- stores

    def open_store(self, incarnation: Incarnation, keeper: ProcessId | None) -> None:
        """A shell does not listen to a keeper that is dead or that it has killed."""
        trouble = self.store_troubles.pop() if self.store_troubles else ""
        body = self.alive.get(keeper) if keeper is not None else None
        if trouble:
            self.unopened.append(incarnation)
        if trouble == "hang" or (keeper is not None and body is None):
            return
        if trouble == "fail":
            self.report(
                self.rng.uniform(0.001, 0.01),
                lambda at: events.StoreFailed(at=at, incarnation=incarnation, reason="address in use"),
            )
            return
        least, most = (14.99, 15.01) if trouble == "late" else (0.001, 0.02)
        opened = partial(self._store_opened, incarnation, keeper)
        if body is None:
            self.after(least, most, opened)
        else:
            body.keeps.append(incarnation)
            self.later(body, least, most, opened)

    def _store_opened(self, incarnation: Incarnation, keeper: ProcessId | None) -> None:
        self._last_port += 1
        port = self.ports[incarnation, keeper] = self._last_port

        def answer(at: float) -> AnyEvent | None:
            body = self.alive.get(keeper) if keeper is not None else None
            unheard = keeper is not None and (body is None or body.killed)
            return None if unheard else events.StoreOpen(at=at, incarnation=incarnation, port=port)

        self.report(0.0005, answer)

    def keeper_of(self, incarnation: Incarnation, port: int) -> Body | None:
        for (opened_for, keeper), opened in self.ports.items():
            if opened == port and opened_for == incarnation and keeper is not None:
                return self.alive.get(keeper)
        return None

    # -- work

    def assign(self, order: Assign) -> None:
        training = self.trainings.get(order.incarnation)
        if training is None:
            training = self.trainings[order.incarnation] = Training(self, order)
        body = self.alive.get(order.id)
        if body is None or body.life is not Life.WARM:
            training.causes.append("signal")  # it died while it waited, and nobody had noticed yet
            return
        body.life = Life.EXECUTING
        body.rank = order.rank
        body.training = training
        training.learn = training.learn or order.learn
        if body.stopped:
            training.causes.append("stop")
        training.join(body)

    def throw(self, body: Body, type: str, message: str) -> None:
        """An exception leaves the script."""
        if body.life is not Life.EXECUTING:
            return
        body.life = Life.LEAVING
        body.raised = True
        if not body.hidden:
            error = Raised(type=type, message=message, traceback="Traceback")
            self.report(
                self.rng.uniform(0.0001, 0.003),
                lambda at: events.WorkerRaised(
                    at=at,
                    id=body.id,
                    error=error,
                    listening=self.listening(),
                    step=self.step_on_boards(),
                    chance=self.rng.random(),
                ),
            )
        self._left(body)
        self._depart(body, 1)

    def end(self, body: Body, code: int) -> None:
        """The script comes to its end by itself, or by sys.exit."""
        if body.life is not Life.EXECUTING:
            return
        body.life = Life.LEAVING
        body.finished = code == 0
        if not body.hidden:
            self.clock.after(self.rng.uniform(0.0001, 0.003), self._tell_end, body, code)
        if code:
            self._left(body)
        self._depart(body, code)

    def _tell_end(self, body: Body, code: int) -> None:
        if not body.end_told:
            body.end_told = True
            self.report(0.0, lambda at: events.WorkerEnded(at=at, id=body.id, code=code, listening=self.listening()))

    def _depart(self, body: Body, code: int) -> None:
        if body.exit_hangs and not body.hidden:
            return
        exit = Exit(signal=SIGSEGV) if body.exit_crashes else Exit(code=code)
        self.later(body, 0.005, 0.4, partial(self.die, body, exit))

    def _left(self, body: Body) -> None:
        if body.training is not None:
            body.training.left(body)

    def listening(self) -> tuple[ProcessId, ...]:
        return tuple(b.id for b in self.alive.values() if b.life is Life.EXECUTING and not b.in_collective)

    def step_on_boards(self) -> Step | None:
        return Step(self.newest_step) if self.newest_step is not None else None

    # -- signals and death

    def terminate(self, ids: tuple[ProcessId, ...]) -> None:
        for id in ids:
            body = self.alive.get(id)
            if body is not None and not body.deaf:
                self.later(body, 0.0005, 0.01, partial(self._terminated, body))

    def _terminated(self, body: Body) -> None:
        manner = self.rng.random()
        if manner < 0.4:
            self.die(body, Exit(signal=SIGTERM))
        elif body.life is Life.EXECUTING and not body.in_collective:
            if manner < 0.6:
                self.end(body, 0)
            elif manner < 0.8:
                self.end(body, 143)
            else:
                self.throw(body, "KeyboardInterrupt", "")

    def kill(self, ids: tuple[ProcessId, ...]) -> None:
        for id in ids:
            body = self.alive.get(id)
            if body is not None:
                body.killed = True
                if not body.unkillable:
                    self.clock.after(body.death_seconds, self.die, body, Exit(signal=9))

    def stop(self, body: Body) -> None:
        body.stopped = True
        self.report(0.0005, lambda at: events.ProcessStopped(at=at, id=body.id, signal=19))

    def resume(self, body: Body) -> None:
        if body.life is Life.DEAD or not body.stopped:
            return
        body.stopped = False
        self.report(0.0005, lambda at: events.ProcessContinued(at=at, id=body.id))
        deferred, body.deferred = body.deferred, []
        for call in deferred:
            self.clock.after(0.0, self._if_able, body, call)

    def die(self, body: Body, exit: Exit) -> None:
        if body.life is Life.DEAD:
            return
        worked = body.life is Life.EXECUTING
        self._bury(body)
        for incarnation in body.keeps:
            if incarnation in self.trainings:
                self.trainings[incarnation].causes.append("store")
        if exit.code == 0 and worked:
            body.finished = True
        notice = self.rng.uniform(0.1, 3.0) if body.hidden else self.rng.uniform(0.00005, 0.001)
        seen_at = self.clock.now + (notice if body.hidden else 0.0)
        self.clock.after(notice, self._tell_loss, body, exit, seen_at)
        gone = notice + body.release_seconds
        self.report(gone, lambda at: events.ProcessGone(at=at, id=body.id, exit=exit))
        if worked:
            self._left(body)

    def _tell_loss(self, body: Body, exit: Exit, seen_at: float) -> None:
        """An agent looks at the board of the dead first, so a script's good end is never told after a death."""
        if body.finished and not body.hidden:
            self._tell_end(body, 0)
        self.report(
            0.0,
            lambda at: events.ProcessLost(
                at=at,
                id=body.id,
                seen_at=seen_at,
                sign="exit" if body.hidden else "mutex",
                exit=exit,
                listening=self.listening(),
                step=self.step_on_boards(),
                chance=self.rng.random(),
            ),
        )

    def _bury(self, body: Body) -> None:
        body.life = Life.DEAD
        self.alive.pop(body.id, None)

    def end_everything(self) -> None:
        self.nurseries += 1
        self.nursery_up = False
        for body in list(self.alive.values()):
            self._bury(body)
