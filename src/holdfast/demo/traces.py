"""What a training run wrote about itself, read while it is being written.

A trace says what happened and when; that it is true for the run is all that is assumed. A step that was made again is
in it twice, under different lives (restart counts): which of the two counts is for the reader to say, and
`committed` says it.
"""

from __future__ import annotations

import contextlib
import os

import msgspec

_READ_BYTES = 1 << 16


class Begin(msgspec.Struct, frozen=True):
    rank: int
    pid: int
    life: int
    at_ns: int


class Ready(msgspec.Struct, frozen=True):
    """The group is formed and the state restored as of `step`."""

    rank: int
    step: int
    life: int
    at_ns: int


class Stepped(msgspec.Struct, frozen=True):
    rank: int
    step: int
    loss: str  # in hexadecimal, so that equal means equal
    samples: tuple[int, ...]
    life: int
    at_ns: int


class Trace:
    """The lines of every rank so far, in the order in which each rank wrote them."""

    def __init__(self, folder: str, ranks: int) -> None:
        self.ranks = ranks
        self.begun: list[Begin] = []
        self.ready: list[Ready] = []
        self.steps: list[Stepped] = []
        self.life = 0  # the newest
        self._newest: dict[int, list[int]] = {}  # by life, each rank's newest step
        self._whole_at: dict[int, list[int]] = {}  # by life, each rank's first step, in time
        self._last: dict[int, tuple[int, int]] = {}  # by rank, its last step and when
        self._paths = [os.path.join(folder, f"trace-{rank}") for rank in range(ranks)]
        self._fds: list[int | None] = [None] * ranks
        self._rests = [b""] * ranks

    def poll(self) -> bool:
        """Read what is new. False: nothing was."""
        return sum(self._poll(rank) for rank in range(self.ranks)) > 0

    def close(self) -> None:
        for fd in self._fds:
            if fd is not None:
                os.close(fd)
        self._fds = [None] * self.ranks

    # -- questions

    def newest_step(self, life: int | None = None) -> int:
        """The newest step that any rank has completed, in one life or altogether."""
        if life is not None:
            return max(self._newest.get(life, [0]))
        return max((max(steps) for steps in self._newest.values()), default=0)

    def is_whole(self, life: int) -> bool:
        """Has every rank completed a step in this life?"""
        return self.whole_at(life) is not None

    def whole_at(self, life: int) -> int | None:
        """When the last of the ranks completed its first step in this life."""
        firsts = self._whole_at.get(life, [])
        return max(firsts) if len(firsts) == self.ranks else None

    def reached_at(self, step: int) -> int | None:
        """When the last of the ranks completed this step, if all have."""
        times = [at for newest, at in self._last.values() if newest == step]
        return max(times) if len(times) == self.ranks else None

    def whole_after(self, life: int) -> int | None:
        """The first life after this one in which every rank has completed a step."""
        return next((later for later in sorted(self._whole_at) if later > life and self.is_whole(later)), None)

    def life_of(self, pid: int) -> int | None:
        return next((begin.life for begin in reversed(self.begun) if begin.pid == pid), None)

    def pids(self, life: int) -> dict[int, int]:
        return {begin.rank: begin.pid for begin in self.begun if begin.life == life}

    def resumed_from(self, life: int) -> int | None:
        return min((ready.step for ready in self.ready if ready.life == life), default=None)

    def committed(self) -> dict[tuple[int, int], Stepped]:
        """By (step, rank), the one that led to the result: the last, since a resumed run throws later ones away."""
        return {(step.step, step.rank): step for step in sorted(self.steps, key=lambda step: step.life)}

    # -- reading

    def _poll(self, rank: int) -> bool:
        fd = self._fds[rank]
        if fd is None:
            with contextlib.suppress(FileNotFoundError):
                fd = self._fds[rank] = os.open(self._paths[rank], os.O_RDONLY | os.O_CLOEXEC)
            if fd is None:
                return False
        found = False
        while data := os.read(fd, _READ_BYTES):
            *lines, self._rests[rank] = (self._rests[rank] + data).split(b"\n")
            for line in lines:
                self._take(rank, line.decode().split(" "))
            found = True
        return found

    def _take(self, rank: int, words: list[str]) -> None:
        match words:
            case ["begin", pid, life, at]:
                self.begun.append(Begin(rank, int(pid), int(life), int(at)))
                self.life = max(self.life, int(life))
            case ["ready", step, life, at]:
                self.ready.append(Ready(rank, int(step), int(life), int(at)))
            case ["step", step, loss, samples, life, at]:
                ids = tuple(map(int, samples.split(",")))
                self._note(Stepped(rank, int(step), loss, ids, int(life), int(at)))

    def _note(self, step: Stepped) -> None:
        self.steps.append(step)
        self._last[step.rank] = step.step, step.at_ns
        newest = self._newest.setdefault(step.life, [0] * self.ranks)
        if not newest[step.rank]:
            self._whole_at.setdefault(step.life, []).append(step.at_ns)
        newest[step.rank] = max(newest[step.rank], step.step)
