"""Schedules that once failed, kept whole so that they stay what they were when the drawing of schedules changes."""

from __future__ import annotations

import msgspec

from holdfast.testing.schedules import Schedule


class Known(msgspec.Struct, frozen=True):
    failed: str  # the invariant that complained
    schedule: Schedule


def load(path: str) -> list[Known]:
    with open(path, "rb") as file:
        return msgspec.json.decode(file.read(), type=list[Known])


def entry(known: Known) -> str:
    """One line of the file."""
    return msgspec.json.encode(known).decode()
