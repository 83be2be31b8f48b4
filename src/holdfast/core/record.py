"""One decision as plain data: what a journal holds and everything that looks back is computed from.

A record carries what changed, never what to do about it, so reading a journal asks `decide` nothing and stays possible
when its rules have changed. Where records are missing a snapshot of the whole state stands in for them; a reader that
meets one knows that it does not know what happened before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.core.fold import Delta, apply, delta
from holdfast.core.turn import Decision
from holdfast.model.events import AnyEvent
from holdfast.model.state import JobState


class Record(msgspec.Struct, frozen=True):
    """An event, what it changed, what was done about it, and why."""

    seq: int  # from 1, without gaps
    at: float  # monotonic seconds of the agent
    wall: float  # seconds since 1970
    event: dict[str, Any]
    delta: Delta
    actions: tuple[dict[str, Any], ...] = ()
    reason: str = ""

    @property
    def kind(self) -> str:
        return str(self.event.get("type", ""))


class Snapshot(msgspec.Struct, frozen=True):
    """The whole state as it was after record `seq`, written because records up to there are missing."""

    seq: int
    at: float
    wall: float
    state: JobState


Entry = Record | Snapshot


class Replay(msgspec.Struct, frozen=True):
    """A state that was computed from a journal, and what could not be read on the way."""

    state: JobState
    seq: int
    records: int
    missing: tuple[tuple[int, int], ...] = ()  # first and last seq of each hole
    whole: bool = True  # False: the state is from before a hole that no snapshot closes


def record(seq: int, wall: float, event: AnyEvent, before: JobState, decision: Decision) -> Record:
    """What `decide(before, event) -> decision` leaves in the journal."""
    return Record(
        seq=seq,
        at=event.at,
        wall=wall,
        event=msgspec.to_builtins(event),
        delta=delta(before, decision.state),
        actions=tuple(msgspec.to_builtins(action) for action in decision.actions),
        reason=decision.reason,
    )


def advance(state: JobState, entry: Entry) -> JobState:
    return entry.state if isinstance(entry, Snapshot) else apply(state, entry.delta)


def replay(entries: Iterable[Entry], to: int | None = None) -> Replay:
    """The state after record `to`, or after the last: changes applied in order, snapshots taken as they are.

    Changes that follow a hole are skipped until a snapshot closes it, because they would be applied to a state that
    never was.
    """
    state, seq, count = JobState(), 0, 0
    missing: list[tuple[int, int]] = []
    broken = False
    for entry in entries:
        if to is not None and entry.seq > to:
            break
        if isinstance(entry, Snapshot):
            if entry.seq > seq:
                missing.append((seq + 1, entry.seq))
            elif not broken:
                continue
            broken = False
        elif entry.seq != seq + 1 or broken:
            if entry.seq != seq + 1:
                missing.append((seq + 1, entry.seq - 1))
            broken, seq = True, entry.seq
            continue
        else:
            count += 1
        state, seq = advance(state, entry), entry.seq
    return Replay(state=state, seq=seq, records=count, missing=tuple(missing), whole=not broken)
