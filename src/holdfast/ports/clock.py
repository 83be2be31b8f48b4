"""Time as an interface, so that shells can be run in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    def now(self) -> float:
        """Monotonic seconds."""
        ...

    def wall(self) -> float:
        """Seconds since 1970."""
        ...

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer: ...
