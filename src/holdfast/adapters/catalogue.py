"""The jobs of a home as they look from outside: what each journal says, held against whether its agent lives.

A journal cannot record the end of its own writer. A job that was under way and whose lock nobody holds is LOST; where
locks cannot be trusted to travel (a home shared over the network, seen from another machine) nothing is concluded.
"""

from __future__ import annotations

import difflib
import socket
from dataclasses import dataclass

import msgspec

from holdfast.adapters.filesystem import magic_of, network_name
from holdfast.adapters.home import Home, JobFolder
from holdfast.adapters.sqlite_journal import Head, UnreadableError, read_head
from holdfast.core.explain import Gathered
from holdfast.model.errors import NotFound
from holdfast.model.state import Incident, Status

TERMINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.STOPPED, Status.LOST})


@dataclass(frozen=True)
class Job:
    folder: JobFolder
    head: Head | None
    alive: bool | None  # None: cannot be told from here
    trouble: str = ""

    @property
    def id(self) -> str:
        return self.folder.id

    @property
    def name(self) -> str:
        return self.head.meta.spec.name if self.head else ""

    @property
    def status(self) -> Status:
        return standing(self.head.state.status if self.head else Status.PENDING, alive=self.alive)

    @property
    def over(self) -> bool:
        return self.status in TERMINAL

    @property
    def wall_offset(self) -> float | None:
        """From the agent's clock to the time of day."""
        return self.head.wall - self.head.at if self.head and self.head.seq else None

    def incident(self, number: int) -> tuple[Incident, Gathered] | None:
        """From the state, else from what was kept beside it: either may be missing after a full disk."""
        data = self.folder.read_incident(number)
        gathered, kept = Gathered(), None
        if data is not None:
            try:
                gathered = msgspec.json.decode(data, type=Gathered)
                kept = msgspec.json.decode(data, type=_Kept).incident
            except msgspec.MsgspecError:
                pass  # written by another version: the state says enough
        known = self.head.state.incidents.get(str(number)) if self.head else None
        found = known or kept
        if found is None:
            return None
        if not gathered.host and self.head:
            gathered = msgspec.structs.replace(gathered, host=self.head.meta.host)
        return found, gathered


class _Kept(msgspec.Struct):
    incident: Incident | None = None


def standing(recorded: Status, *, alive: bool | None) -> Status:
    return Status.LOST if alive is False and recorded not in TERMINAL else recorded


def look(folder: JobFolder) -> Job:
    alive = folder.held()
    try:
        head = read_head(folder.journal)
    except UnreadableError as error:
        return Job(folder, None, alive, str(error))
    elsewhere = head.meta.host != socket.gethostname()
    if alive is False and elsewhere and network_name(magic_of(folder.path)):
        alive = None
    return Job(folder, head, alive)


def jobs(home: Home) -> list[Job]:
    """Newest first."""
    return [look(folder) for folder in reversed(home.folders())]


def find(home: Home, wanted: str) -> Job:
    """By id, by `last`, by the beginning of an id if only one has it, or by name: then the newest of that name."""
    folders = home.folders()
    where = str(home.jobs)
    if not folders:
        raise NotFound("there is no job yet", where=where, remedy="Start one: holdfast run SCRIPT")
    by_id = {str(folder.id): folder for folder in folders}
    if wanted == "last":
        return look(folders[-1])
    if wanted in by_id:
        return look(by_id[wanted])
    begins = [folder for id, folder in by_id.items() if id.startswith(wanted)]
    if len(begins) == 1:
        return look(begins[0])
    for folder in reversed(folders):
        job = look(folder)
        if job.name == wanted:
            return job
    if begins:
        raise NotFound(
            f"{wanted!r} is the beginning of {len(begins)} job ids",
            where=where,
            remedy=f"One of them: {begins[-1].id}",
        )
    near = difflib.get_close_matches(wanted, by_id, n=1)
    remedy = f"Did you mean {near[0]}? " if near else ""
    raise NotFound(f"no job {wanted!r}", where=where, remedy=remedy + "See `holdfast jobs ls`.")
