"""How a process ended, as far as anybody knows."""

from __future__ import annotations

import msgspec

from holdfast.model.ids import Incarnation, ProcessId, Rank

SHELL_SIGNALS = range(129, 160)  # a shell reports "killed by signal N" as exit code 128 + N


class Exit(msgspec.Struct, frozen=True):
    """A wait status: exactly one of the two is set, or neither when nobody could collect it."""

    code: int | None = None
    signal: int | None = None


class Raised(msgspec.Struct, frozen=True):
    """An exception that left the script."""

    type: str
    message: str
    traceback: str


class Casualty(msgspec.Struct, frozen=True):
    """One process that did not survive, in the order in which it was noticed."""

    id: ProcessId
    rank: Rank
    incarnation: Incarnation
    at: float
    pid: int | None = None
    sign: str = ""
    exit: Exit | None = None
    raised: Raised | None = None
    killed_by_us: bool = False
    evidence: tuple[str, ...] = ()
