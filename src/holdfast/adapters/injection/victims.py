"""Who can be hurt: the processes of one job on this machine, as its journal names them.

A process id alone proves nothing, since the kernel uses it again. Every process of a job is a child of the job's agent,
and the agent is named by its pid and its start time. `held` opens a handle first and asks for the parent afterwards, so
what is confirmed is what will be hurt, whatever the number comes to mean later.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec

from holdfast.adapters import proc
from holdfast.adapters.injection.refusal import Gone, Refused
from holdfast.adapters.sqlite_journal import Head, Meta
from holdfast.model.state import Process, Purpose, Stage

_NURSERY_TITLE = b"holdfast: nursery of "
_NURSERY_WORDS = (b"boot.py", b"nursery")
_TRAINING = (Stage.RUNNING, Stage.FINISHED, Stage.RAISED)
_READY = (Stage.WARM, Stage.RUNNING)


class Kind(StrEnum):
    WORKER = "worker"
    SPARE = "spare"
    NURSERY = "nursery"
    STORE = "store"


class Victim(msgspec.Struct, frozen=True):
    kind: Kind
    pid: int
    agent_pid: int
    rank: int | None = None
    id: str = ""  # in the journal; the nursery has none
    incarnation: int = 0

    @property
    def name(self) -> str:
        if self.kind is Kind.WORKER:
            return f"rank {self.rank}"
        return f"spare {self.id}" if self.kind is Kind.SPARE else f"the {self.kind.value}"


def agent_of(meta: Meta) -> int:
    """The pid of the job's agent, if it is alive and on this machine."""
    if meta.host != socket.gethostname():
        raise Refused(f"{meta.spec.job_id} runs on {meta.host}", remedy="A drill acts on the machine it is started on.")
    seen = proc.stat(meta.pid)
    if seen is None or seen.started != meta.pid_started:
        raise Refused(f"{meta.spec.job_id} is not running", why=f"its agent (pid {meta.pid}) is gone")
    return meta.pid


def workers(head: Head) -> dict[int, Victim]:
    """The workers of the newest incarnation by rank. A rank that is dead or has not begun its script is missing."""
    agent = agent_of(head.meta)
    found = {}
    for process in _found(head, Purpose.WORKER, _TRAINING):
        if process.rank is None or process.incarnation != head.state.incarnation:
            continue
        pid = process.pid or _child_with_rank(agent, process.rank)
        if pid:
            found[int(process.rank)] = _victim(Kind.WORKER, process, pid, agent)
    return dict(sorted(found.items()))


def spares(head: Head) -> list[Victim]:
    agent = agent_of(head.meta)
    return [_victim(Kind.SPARE, p, p.pid, agent) for p in _found(head, Purpose.SPARE, _READY) if p.pid]


def store(head: Head) -> Victim | None:
    """The process that serves the store, where there is one: otherwise rank 0 does."""
    agent = agent_of(head.meta)
    return next((_victim(Kind.STORE, p, p.pid, agent) for p in _found(head, Purpose.STORE, _READY) if p.pid), None)


def nursery(head: Head) -> Victim | None:
    """The journal holds no pid of it; its title and its parent say which it is."""
    agent = agent_of(head.meta)
    for pid in proc.children_of(agent):
        words = _command_line(pid)
        if words[:1] and (words[0].startswith(_NURSERY_TITLE) or _is_nursery_start(words)):
            return Victim(Kind.NURSERY, pid, agent)
    return None


@contextlib.contextmanager
def held(chosen: Sequence[Victim]) -> Iterator[list[int]]:
    """Handles to processes that are certainly the ones chosen: all of them, or `Gone`."""
    handles: list[int] = []
    try:
        for victim in chosen:
            try:
                handles.append(os.pidfd_open(victim.pid))
            except ProcessLookupError:
                raise Gone(victim.name) from None
            seen = proc.stat(victim.pid)
            if seen is None or seen.parent != victim.agent_pid or seen.exiting or seen.state in "ZX":
                raise Gone(victim.name)
        yield handles
    finally:
        for handle in handles:
            os.close(handle)


def _found(head: Head, purpose: Purpose, stages: tuple[Stage, ...]) -> list[Process]:
    return [p for p in head.state.processes.values() if p.purpose is purpose and p.stage in stages]


def _victim(kind: Kind, process: Process, pid: int | None, agent: int) -> Victim:
    return Victim(kind, pid or 0, agent, process.rank, process.id, int(process.incarnation))


def _child_with_rank(agent: int, rank: int) -> int | None:
    """A program of the user's own has no pid in the journal, but it has its rank in its environment."""
    ranked = proc.with_variable("RANK", str(rank))
    return next((pid for pid in proc.children_of(agent) if pid in ranked), None)


def _is_nursery_start(words: list[bytes]) -> bool:
    return any(a.endswith(_NURSERY_WORDS[0]) and b == _NURSERY_WORDS[1] for a, b in itertools.pairwise(words))


def _command_line(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []
