"""The pump: event in, decision out, recorded, performed. The same shape in every shell, and the only loop there is.

Events that performing an action brings about are handled after it, in order; nothing is decided in the middle of
something else.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable

from holdfast.core.job import decide
from holdfast.model.actions import AnyAction
from holdfast.model.events import AnyEvent
from holdfast.model.state import JobState
from holdfast.ports.journal import Journal, record


class Pump:
    def __init__(
        self,
        journal: Journal,
        perform: Callable[[AnyAction], None],
        wall: Callable[[], float],
        complain: Callable[[str], None],
    ) -> None:
        self.state = JobState()
        self._journal = journal
        self._perform = perform
        self._wall = wall
        self._complain = complain
        self._events: deque[AnyEvent] = deque()
        self._turning = False
        self._seq = 0

    def feed(self, event: AnyEvent) -> None:
        self._events.append(event)
        if self._turning:
            return
        self._turning = True
        try:
            while self._events:
                self._turn(self._events.popleft())
        finally:
            self._turning = False

    def _turn(self, event: AnyEvent) -> None:
        decision = decide(self.state, event)
        self._seq += 1
        self._journal.append(record(self._seq, self._wall(), event, self.state, decision), decision.state)
        self.state = decision.state
        for action in decision.actions:
            try:
                self._perform(action)
            except Exception:
                # A bug of ours in one action must not take the job down; what it was to bring about will time out.
                self._complain(f"internal error while performing {action}:\n{traceback.format_exc()}")
