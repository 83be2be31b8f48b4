"""What is known of a run while it goes on: the trace, the plan and now and then a look into the journal.

The views draw it; nothing here draws, and nothing here acts on the run.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field

from holdfast.adapters.sqlite_journal import Head, UnreadableError, read_entries
from holdfast.core.goodput import account
from holdfast.demo.inject import Injector, Made
from holdfast.demo.launch import HoldfastRun
from holdfast.demo.plan import Fault
from holdfast.demo.traces import Trace
from holdfast.model.state import Incident, Process, Purpose, Stage

_JOURNAL_SECONDS = 0.5


@dataclass(frozen=True)
class Band:
    """A stretch of a run's time, in seconds since its launch."""

    start: float
    end: float
    what: str  # start, new, again, down, end
    life: int


@dataclass
class Story:
    """One of the two runs."""

    name: str
    title: str
    steps: int
    plan: tuple[Fault, ...] = ()
    run: HoldfastRun | None = None
    injector: Injector | None = None
    head: Head | None = None
    goodput: float | None = None
    over: bool = False
    _curve: dict[int, dict[int, float]] = field(default_factory=dict)
    _drawn: int = 0
    _looked_at: float = 0.0

    @property
    def trace(self) -> Trace | None:
        return self.run.trace if self.run is not None else None

    @property
    def step(self) -> int:
        """The step the run is at: after a resume, less than it had been at."""
        trace = self.trace
        if trace is None:
            return 0
        return trace.newest_step(trace.life) or (trace.resumed_from(trace.life) or 0)

    @property
    def best_step(self) -> int:
        return self.trace.newest_step() if self.trace else 0

    @property
    def standing(self) -> str:
        if self.run is None:
            return "waiting"
        if self.over:
            return "done" if self.run.exit_code == 0 else f"exit code {self.run.exit_code}"
        if self.injector is not None and self.injector.waiting_since_ns is not None:
            return "recovering"
        trace = self.run.trace
        if not trace.is_whole(trace.life):
            return "starting: the nursery imports torch" if not trace.begun else "starting"
        return f"incarnation {trace.life + 1}" if self.injector is not None else "training"

    def look(self) -> None:
        """A look into the journal, not too often."""
        if self.run is None or time.monotonic() - self._looked_at < _JOURNAL_SECONDS:
            return
        self._looked_at = time.monotonic()
        self.head = self.run.head() or self.head
        job = self.run.job
        if job is not None:
            with contextlib.suppress(UnreadableError):
                until = None if self.over else time.monotonic()
                self.goodput = account(read_entries(job.journal), until=until).goodput

    def spares(self) -> tuple[int, int]:
        """(warm, wanted)"""
        if self.head is None:
            return 0, 0
        found = [p for p in self.head.state.processes.values() if _is_warm_spare(p)]
        return len(found), self.head.meta.spec.terms.spares

    def nursery(self) -> str:
        return self.head.state.nursery.stage.value.replace("_", " ") if self.head is not None else "absent"

    def curve(self) -> list[tuple[float, float]]:
        """(share of all steps, mean loss of the ranks so far); a step that was made again replaces itself."""
        trace = self.trace
        if trace is None:
            return []
        for step in trace.steps[self._drawn :]:
            self._curve.setdefault(step.step, {})[step.rank] = float.fromhex(step.loss)
        self._drawn = len(trace.steps)
        return [(step / self.steps, sum(of.values()) / len(of)) for step, of in sorted(self._curve.items())]

    def kills(self) -> list[int]:
        return [made.fault.step for made in self.made() if made.done]

    def made(self) -> list[Made]:
        """The plan and what came of it so far."""
        return self.injector.made if self.injector is not None else [Made(fault) for fault in self.plan]

    def incident(self, made: Made) -> Incident | None:
        """The journal's record of a kill, as of the last look."""
        pids = {victim.pid for victim in made.victims}
        incidents = self.head.state.incidents.values() if self.head is not None else ()
        return next((one for one in incidents if any(c.pid in pids for c in one.casualties)), None)

    def replayed(self) -> list[tuple[int, int]]:
        """Steps (from, to) that were made again."""
        trace = self.trace
        if trace is None:
            return []
        return [
            (trace.resumed_from(made.back_life) or 0, trace.newest_step(made.life))
            for made in self.made()
            if made.back_life is not None
        ]

    def bands(self) -> list[Band]:
        """How the time went so far, life by life."""
        if self.run is None:
            return []
        trace, launched = self.run.trace, self.run.launched_ns
        now = self.run.ended_ns or time.monotonic_ns()
        downs = {made.life: made.at_ns for made in self.made() if made.at_ns is not None and made.fault.hurts_workers}
        if best_at := trace.reached_at(self.steps):
            downs.setdefault(trace.life, best_at)
        bands, since, best = [], launched, 0
        for life in range(trace.life + 1):
            whole = trace.whole_at(life)
            bands.append(_band(launched, since, whole or now, "down" if life else "start", life))
            if whole is None:
                break
            end = downs.get(life, now)
            again = min((s.at_ns for s in trace.steps if s.life == life and s.step > best), default=end)
            if best and again > whole:
                bands.append(_band(launched, whole, min(again, end), "again", life))
            bands.append(_band(launched, max(whole, min(again, end)) if best else whole, end, "new", life))
            best, since = max(best, trace.newest_step(life)), end
        if best_at:
            bands.append(_band(launched, best_at, now, "end", trace.life))
        return bands


def _band(launched: int, start: int, end: int, what: str, life: int) -> Band:
    return Band((start - launched) / 1e9, (end - launched) / 1e9, what, life)


def _is_warm_spare(process: Process) -> bool:
    return process.purpose is Purpose.SPARE and process.stage is Stage.WARM
