"""Where decisions are kept. Appending never waits and never fails as far as its caller can tell: a journal that cannot
keep a record says so in `health()`, because a job matters more than the account of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from holdfast.core.record import Entry, Record, Snapshot
from holdfast.core.record import record as record
from holdfast.model.state import JobState
from holdfast.ports.health import Health

__all__ = ["Entry", "Health", "Journal", "MemoryJournal", "Record", "Snapshot", "record"]


class Journal(Protocol):
    def append(self, record: Record, state: JobState) -> None:
        """Keep a record and the state that it leads to."""
        ...

    def entries(self, after: int = 0) -> Iterator[Entry]:
        """What was kept with a higher number than `after`, in order; snapshots where records are missing."""
        ...

    def records(self, after: int = 0) -> Iterator[Record]: ...

    def latest(self) -> tuple[int, JobState] | None:
        """The newest state, as it was handed over: what folding the entries must give."""
        ...

    def health(self) -> Health: ...

    def close(self) -> None:
        """Keep what is still waiting, for a bounded time, and let go. Closing twice is closing once."""
        ...


class MemoryJournal:
    """The fake: a list."""

    def __init__(self) -> None:
        self._kept: list[Record] = []
        self._latest: tuple[int, JobState] | None = None

    def append(self, record: Record, state: JobState) -> None:
        self._kept.append(record)
        self._latest = record.seq, state

    def entries(self, after: int = 0) -> Iterator[Entry]:
        return self.records(after)

    def records(self, after: int = 0) -> Iterator[Record]:
        return (record for record in self._kept if record.seq > after)

    def latest(self) -> tuple[int, JobState] | None:
        return self._latest

    def health(self) -> Health:
        return Health()

    def close(self) -> None:
        return
