"""The simulated shell: hands events to the real `decide`, performs its actions on the simulated machine, keeps timers.

The same pump as everywhere: event -> decide -> record -> perform -> outcomes come back as events. After every event
it looks at the invariants; the first complaint ends the schedule.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from holdfast.core import fold, job
from holdfast.core.turn import Decision
from holdfast.model import actions, events
from holdfast.model.actions import AnyAction
from holdfast.model.events import AnyEvent
from holdfast.model.ids import Incarnation, ProcessId
from holdfast.model.state import JobState, Phase, Status
from holdfast.testing import invariants
from holdfast.testing.clock import Clock
from holdfast.testing.faults import FAULTS
from holdfast.testing.machine import Machine
from holdfast.testing.schedules import Fault, Schedule

EVENTS_LIMIT = 4000
SECONDS_LIMIT = 50_000.0
AFTERMATH_EVENTS = 5
MEMORY_EVENTS = 60

Trace = Callable[[AnyEvent, fold.Delta, tuple[AnyAction, ...]], None]


class Violation(msgspec.Struct, frozen=True):
    invariant: str
    complaint: str
    event: int
    at: float


class World:
    def __init__(self, schedule: Schedule, trace: Trace | None = None) -> None:
        self.schedule = schedule
        self.clock = Clock()
        self.state = JobState()
        self.folded = JobState()
        self.journal: list[fold.Delta] = []
        self.timers: dict[str, float] = {}
        self.delivered: deque[AnyEvent] = deque(maxlen=MEMORY_EVENTS)
        self.events = 0
        self.violation: Violation | None = None
        self.finish_code: int | None = None
        self.committed_by: Incarnation | None = None  # told that every rank had finished, while it trained
        self.told_finished: dict[ProcessId, Incarnation] = {}
        self.assigned: dict[ProcessId, Incarnation] = {}
        self.opened: dict[tuple[Incarnation, ProcessId | None], int] = {}
        self.faults_hit: list[str] = []
        self.hits_during_recovery = 0
        self.covered: set[tuple[str, str]] = set()
        self.machine = Machine(
            self.clock,
            Random(schedule.seed),
            self.report,
            self._on_moment,
            schedule.terms,
            schedule.script,
        )
        self._trace = trace
        self._waiting: dict[tuple[str, int], list[Fault]] = {}
        self._moments: dict[str, int] = {}
        for fault in schedule.faults:
            self._waiting.setdefault((fault.moment, fault.nth), []).append(fault)

    # -- running

    def run(self) -> None:
        self.report(0.0, lambda at: events.Submitted(at=at, terms=self.schedule.terms))
        while self.violation is None and self.state.phase is not Phase.OVER:
            if not self.clock.advance() or self.events > EVENTS_LIMIT or self.clock.now > SECONDS_LIMIT:
                break
        until = self.events + AFTERMATH_EVENTS
        while self.violation is None and self.events < until and self.clock.advance():
            pass
        if self.violation is None:
            self._complain(invariants.at_the_end(self))

    def report(self, seconds: float, make: Callable[[float], AnyEvent | None]) -> None:
        """An event reaches the core after so long; what it says of others is looked up then."""
        self.clock.after(seconds, self._deliver, make)

    def _deliver(self, make: Callable[[float], AnyEvent | None]) -> None:
        event = make(self.clock.now)
        if event is None or self.violation is not None:
            return
        before = self.state
        self.events += 1
        self.delivered.append(event)
        self._note_end(event)
        try:
            decision = job.decide(before, event)
        except Exception as error:
            self._complain(("decide_is_total", f"{type(event).__name__}: {type(error).__name__}: {error}"))
            return
        changes = fold.delta(before, decision.state)
        self.journal.append(changes)
        self.state = decision.state
        self.folded = fold.apply(self.folded, changes)
        if self._trace is not None:
            self._trace(event, changes, decision.actions)
        self._perform_all(decision)
        self._complain(invariants.after_event(invariants.Look(before, event, decision, self)))
        for action in decision.actions:
            self._record(action)
        if before.phase is not decision.state.phase:
            self._on_moment(decision.state.phase.value)
            if decision.state.open_incident and decision.state.phase in (Phase.MUSTERING, Phase.TRAINING):
                self._on_moment("recovering")
        if isinstance(event, events.ProcessLost):
            self._on_moment("loss")
        elif isinstance(event, events.WorkerEnded):
            self._on_moment("ended")

    def _complain(self, complaint: tuple[str, str] | None) -> None:
        if complaint is not None and self.violation is None:
            self.violation = Violation(*complaint, event=self.events, at=self.clock.now)

    def _note_end(self, event: AnyEvent) -> None:
        """Remember which ranks the core has been told to have finished."""
        well = isinstance(event, events.WorkerEnded) and event.code == 0
        well = well or (isinstance(event, events.ProcessLost) and event.exit.code == 0)
        body = self.machine.bodies.get(event.id) if well else None  # type: ignore[union-attr]
        if body is None or body.training is None or self.state.phase is not Phase.TRAINING:
            return
        incarnation = body.training.incarnation
        if incarnation != self.state.incarnation:
            return
        self.told_finished[body.id] = incarnation
        members = body.training.members.values()
        if len(members) == self.schedule.terms.world and all(m.id in self.told_finished for m in members):
            self.committed_by = incarnation

    # -- actions

    def _perform_all(self, decision: Decision) -> None:
        source = self.faults_hit[-1] if self.faults_hit else "none"
        for action in decision.actions:
            self.covered.add((source, type(action).__name__))
            _PERFORMERS[type(action)](self, action)

    def _record(self, action: AnyAction) -> None:
        """History that invariants compare later actions with."""
        if isinstance(action, actions.Assign):
            self.assigned[action.id] = action.incarnation
        elif isinstance(action, actions.OpenStore):
            key = (action.incarnation, action.keeper)
            self.opened[key] = self.opened.get(key, 0) + 1
        elif isinstance(action, actions.Finish):
            self.finish_code = action.code

    def set_timer(self, action: actions.SetTimer) -> None:
        due = self.clock.now + action.seconds
        self.timers[action.timer] = due
        self.clock.after(action.seconds, self._ring, action.timer, due)

    def cancel_timer(self, action: actions.CancelTimer) -> None:
        self.timers.pop(action.timer, None)

    def _ring(self, timer: str, due: float) -> None:
        if self.timers.get(timer) == due:
            del self.timers[timer]
            self._deliver(lambda at: events.TimerFired(at=at, timer=timer))

    def finish(self, _action: actions.Finish) -> None:
        self.machine.end_everything()
        self.timers.clear()

    # -- faults

    def _on_moment(self, moment: str) -> None:
        nth = self._moments[moment] = self._moments.get(moment, 0) + 1
        for fault in self._waiting.pop((moment, nth), ()):
            self.clock.after(fault.delay, self._inject, fault)

    def _inject(self, fault: Fault) -> None:
        if self.state.phase is not Phase.OVER and FAULTS[fault.kind](self, fault.pick):
            self.faults_hit.append(fault.kind)
            if self.state.status is Status.RECOVERING:
                self.hits_during_recovery += 1


_PERFORMERS: dict[type[actions.Action], Callable[[World, Any], None]] = {
    actions.StartNursery: lambda world, _: world.machine.start_nursery(),
    actions.Preload: lambda world, _: world.machine.preload(),
    actions.StartProcess: lambda world, a: world.machine.start_process(a.id, a.origin),
    actions.OpenStore: lambda world, a: world.machine.open_store(a.incarnation, a.keeper),
    actions.Assign: lambda world, a: world.machine.assign(a),
    actions.Terminate: lambda world, a: world.machine.terminate(a.ids),
    actions.Kill: lambda world, a: world.machine.kill(a.ids),
    actions.SetTimer: World.set_timer,
    actions.CancelTimer: World.cancel_timer,
    actions.Say: lambda _world, _action: None,
    actions.CloseIncident: lambda _world, _action: None,
    actions.Finish: World.finish,
}
