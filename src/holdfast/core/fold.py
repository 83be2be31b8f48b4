"""The state as the sum of what was recorded: each decision's changes, applied in order. `decide` is never asked again.

A change is recorded per field, and per key for the fields that are tables, so that a record stays small when one of
many processes changes. Tables keep their order, so that a state that was folded decides like the one that was lived.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import astuple

from holdfast.model.state import JobState

Delta = dict[str, Any]

_TABLES = ("processes", "incidents", "timers")
_DEC = {field.name: field.type for field in msgspec.structs.fields(JobState)}


def delta(old: JobState, new: JobState) -> Delta:
    """What changed, as plain data."""
    changes: Delta = {}
    values = zip(JobState.__struct_fields__, astuple(old), astuple(new), strict=True)
    for name, before, after in values:
        if before is after or before == after:
            continue
        if name in _TABLES:
            table: dict[str, Any] = {key: None for key in before if key not in after}
            table |= {key: msgspec.to_builtins(value) for key, value in after.items() if before.get(key) != value}
            changes[name] = table
        else:
            changes[name] = msgspec.to_builtins(after)
    return changes


def apply(state: JobState, changes: Delta) -> JobState:
    fields: dict[str, Any] = {}
    for name, change in changes.items():
        if name in _TABLES:
            present = {key: value for key, value in change.items() if value is not None}
            table = {key: value for key, value in getattr(state, name).items() if change.get(key, value) is not None}
            fields[name] = table | msgspec.convert(present, _DEC[name])
        else:
            fields[name] = msgspec.convert(change, _DEC[name])
    return msgspec.structs.replace(state, **fields)


def fold(deltas: Iterable[Delta], start: JobState | None = None) -> JobState:
    state = start if start is not None else JobState()
    for changes in deltas:
        state = apply(state, changes)
    return state
