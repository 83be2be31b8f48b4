"""Commands that leave the core. A shell performs them and feeds what comes of it back as events."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast.model.ids import Incarnation, ProcessId, Rank
from holdfast.model.state import Origin


class Action(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    pass


class StartNursery(Action, frozen=True):
    pass


class Preload(Action, frozen=True):
    """Have the nursery import what the script was seen to import."""


class StartProcess(Action, frozen=True):
    id: ProcessId
    origin: Origin
    seat: Rank | None = None  # the rank it is meant for; a spare may take another


class OpenStore(Action, frozen=True):
    """Open an empty store for this incarnation, in the keeper or, without one, by reserving a port for rank 0."""

    incarnation: Incarnation
    keeper: ProcessId | None


class Assign(Action, frozen=True):
    """Make a warm process a worker."""

    id: ProcessId
    rank: Rank
    incarnation: Incarnation
    restarts: int
    port: int
    agent_store: bool
    learn: bool


class Terminate(Action, frozen=True):
    """Ask with a signal that can be handled."""

    ids: tuple[ProcessId, ...]
    signal: int


class Kill(Action, frozen=True):
    ids: tuple[ProcessId, ...]


class SetTimer(Action, frozen=True):
    timer: str
    seconds: float


class CancelTimer(Action, frozen=True):
    timer: str


class Level(StrEnum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Say(Action, frozen=True):
    """Tell the user one line."""

    level: Level
    text: str


class CloseIncident(Action, frozen=True):
    """The record is complete: gather what was too slow to gather on the way."""

    number: int


class Finish(Action, frozen=True):
    """End everything that is left and leave with this exit code."""

    code: int


AnyAction = (
    StartNursery
    | Preload
    | StartProcess
    | OpenStore
    | Assign
    | Terminate
    | Kill
    | SetTimer
    | CancelTimer
    | Say
    | CloseIncident
    | Finish
)
