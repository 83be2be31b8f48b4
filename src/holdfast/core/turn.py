"""One turn of `decide`: the state as it becomes, the actions so far, and why.

A turn is mutable and private to one call, so that rules can be written as steps; what leaves it is frozen.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from holdfast.model import actions
from holdfast.model.actions import AnyAction, Level
from holdfast.model.ids import ProcessId
from holdfast.model.state import Incident, JobState, Phase, Process, Purpose, Stage


class Decision(msgspec.Struct, frozen=True):
    state: JobState
    actions: tuple[AnyAction, ...]
    reason: str


class Turn:
    def __init__(self, state: JobState, at: float, chance: float = 0.5) -> None:
        self.state = state
        self.at = at
        self.chance = chance
        self._actions: list[AnyAction] = []
        self._reasons: list[str] = []

    def decision(self) -> Decision:
        return Decision(self.state, tuple(self._actions), "; ".join(self._reasons))

    @property
    def ending(self) -> bool:
        """Whether nothing new should be begun."""
        return self.state.phase in (Phase.LEAVING, Phase.STOPPING, Phase.FAILING, Phase.OVER)

    # -- recording

    def set(self, **changes: object) -> None:
        self.state = replace(self.state, **changes)

    def act(self, *actions_: AnyAction) -> None:
        self._actions.extend(actions_)

    def because(self, reason: str) -> None:
        if reason not in self._reasons:
            self._reasons.append(reason)

    def say(self, text: str, level: Level = Level.INFO) -> None:
        self.act(actions.Say(level=level, text=text))

    # -- processes

    def put(self, process: Process, **changes: object) -> Process:
        process = replace(process, **changes) if changes else process
        self.set(processes={**self.state.processes, process.id: process})
        return process

    def drop(self, id: ProcessId) -> None:
        self.set(processes={key: value for key, value in self.state.processes.items() if key != id})

    def workers(self, *stages: Stage) -> list[Process]:
        """Workers of the current incarnation, in the order of their ranks."""
        found = [
            process
            for process in self.state.processes.values()
            if process.purpose is Purpose.WORKER
            and process.incarnation == self.state.incarnation
            and (not stages or process.stage in stages)
        ]
        return sorted(found, key=lambda process: process.rank or 0)

    def ask(self, processes: list[Process], signal: int) -> None:
        """Send a signal that can be handled."""
        for process in processes:
            self.put(process, asked=True, signalled_at=self._since(process))
        if processes:
            self.act(actions.Terminate(ids=tuple(process.id for process in processes), signal=signal))

    def _since(self, process: Process) -> float:
        return process.signalled_at if process.signalled_at is not None else self.at

    def spares(self, *stages: Stage) -> list[Process]:
        """Idle processes in the order in which they should be used: the best prepared, then the oldest, first."""
        found = [
            process
            for process in self.state.processes.values()
            if process.purpose is Purpose.SPARE and process.stage in (stages or (Stage.STARTING, Stage.WARM))
        ]
        return sorted(found, key=lambda process: (-process.generation, int(process.id[1:])))

    def kill(self, processes: list[Process]) -> None:
        """Send SIGKILL. What has not run anything yet is forgotten at once, the rest when it is known to be dead."""
        doomed = [p for p in processes if p.stage not in (Stage.CONDEMNED, Stage.DEAD)]
        for process in doomed:
            if process.stage in (Stage.STARTING, Stage.WARM):
                self.cancel(f"birth:{process.id}")
                self.drop(process.id)
            else:
                self.put(process, stage=Stage.CONDEMNED, signalled_at=self._since(process))
        if doomed:
            self.act(actions.Kill(ids=tuple(process.id for process in doomed)))

    # -- timers

    def timer(self, name: str, seconds: float) -> None:
        self.set(timers={**self.state.timers, name: self.at + seconds})
        self.act(actions.SetTimer(timer=name, seconds=seconds))

    def cancel(self, name: str) -> None:
        if name in self.state.timers:
            self.set(timers={key: value for key, value in self.state.timers.items() if key != name})
            self.act(actions.CancelTimer(timer=name))

    # -- the incident that is open

    @property
    def incident(self) -> Incident | None:
        return self.state.incidents.get(str(self.state.open_incident))

    def note(self, **changes: object) -> None:
        """Add to the open incident, if one is open."""
        if (incident := self.incident) is not None:
            incident = replace(incident, **changes)
            self.set(incidents={**self.state.incidents, str(incident.number): incident})
