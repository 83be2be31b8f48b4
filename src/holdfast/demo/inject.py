"""Makes the faults of the plan when their steps are reached.

It knows of the run what anybody on this machine can see: the lines of the trace, the journal, the kernel's table of
processes. The run is not told, and nothing of it is asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from holdfast.adapters.injection import Gone, Kind, Victim, drills
from holdfast.demo.plan import Fault
from holdfast.demo.traces import Trace

Find = Callable[[Fault], list[Victim]]


class Made(msgspec.Struct):
    """One fault of the plan, and what the trace says of it."""

    fault: Fault
    at_ns: int | None = None
    victims: tuple[Victim, ...] = ()
    life: int = 0  # the one that was hurt
    back_at_ns: int | None = None  # the last of all ranks has completed a step in a later life
    back_life: int | None = None

    @property
    def done(self) -> bool:
        return self.at_ns is not None

    @property
    def back(self) -> bool:
        return self.done and (self.back_at_ns is not None or not self.fault.hurts_workers)

    @property
    def back_seconds(self) -> float | None:
        if self.at_ns is None or self.back_at_ns is None:
            return None
        return (self.back_at_ns - self.at_ns) / 1e9

    def replayed(self, trace: Trace) -> int | None:
        """Steps that some rank had completed and that were made again."""
        if self.back_life is None or (resumed := trace.resumed_from(self.back_life)) is None:
            return None
        return max(0, trace.newest_step(self.life) - resumed)


class Injector:
    """Goes through the plan in its order: a fault waits for its step, and for the job to be back from the last one."""

    def __init__(self, plan: Sequence[Fault], trace: Trace, find: Find) -> None:
        self.made = [Made(fault) for fault in plan]
        self._trace = trace
        self._find = find
        self._due_at: float | None = None

    @property
    def waiting_since_ns(self) -> int | None:
        """The kill from which the job is not back yet."""
        return next((made.at_ns for made in self.made if made.done and not made.back), None)

    def look(self) -> Made | None:
        """To be called whenever the trace may have grown; a fault that was made, or one that is over."""
        for made in self.made:
            if made.back:
                continue
            return self._look_back(made) if made.done else self._try(made)
        return None

    def _look_back(self, made: Made) -> Made | None:
        life = self._trace.whole_after(made.life)
        if life is None:
            return None
        made.back_life, made.back_at_ns = life, self._trace.whole_at(life)
        return made

    def _try(self, made: Made) -> Made | None:
        trace, fault = self._trace, made.fault
        if trace.newest_step(trace.life) < fault.step or not trace.is_whole(trace.life):
            return None
        if self._due_at is None:
            self._due_at = time.monotonic() + fault.delay_seconds
        if time.monotonic() < self._due_at:
            return None
        victims = self._find(fault)
        if not victims:
            return None
        try:
            injection = drills.strike("kill", victims)
        except Gone:
            return None
        self._due_at = None
        made.at_ns, made.victims = injection.at_ns, injection.victims
        made.life = next((trace.life_of(v.pid) for v in victims if v.kind is Kind.WORKER), None) or trace.life
        return made
