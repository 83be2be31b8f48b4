"""Virtual time: a heap of calls. It decides only what comes next; equal times keep the order in which they were set."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Call = Callable[..., None]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Call, tuple[Any, ...]]] = []
        self._set = 0

    def after(self, seconds: float, call: Call, *arguments: Any) -> None:
        self._set += 1
        heappush(self._heap, (self.now + seconds, self._set, call, arguments))

    def advance(self) -> bool:
        """Jump to the next call and make it; False when nothing will ever happen again."""
        if not self._heap:
            return False
        self.now, _, call, arguments = heappop(self._heap)
        call(*arguments)
        return True
