"""Reads what bench/train_ddp.py writes, while it is being written. The format is described there."""

from __future__ import annotations

import os
from dataclasses import dataclass, field


@dataclass
class Life:
    """One process of one rank."""

    pid: int
    restarts: int
    born_ns: int
    steps: list[tuple[int, int]] = field(default_factory=list)  # (step, when it was completed)
    cpu: dict[int, int] = field(default_factory=dict)  # CPU time used by the end of a step

    def when(self, step: int) -> int | None:
        return next((at for number, at in self.steps if number == step), None)


class Reader:
    """The lives of one rank, read a little further each time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""
        self.lives: list[Life] = []

    def poll(self) -> None:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(line.split())

    def _take(self, words: list[bytes]) -> None:
        if words[0] == b"#":
            self.lives.append(Life(*map(int, words[1:])))
        elif words[0] == b"!":
            self.lives[-1].cpu[int(words[1])] = int(words[2])
        else:
            self.lives[-1].steps.append((int(words[0]), int(words[1])))


class Traces:
    """All ranks of one job."""

    def __init__(self, folder: str, world: int) -> None:
        self._readers = [Reader(os.path.join(folder, f"rank-{rank}.trace")) for rank in range(world)]

    def poll(self) -> None:
        for reader in self._readers:
            reader.poll()

    def life(self, rank: int, restarts: int) -> Life | None:
        return next((life for life in reversed(self._readers[rank].lives) if life.restarts == restarts), None)

    def crew(self, restarts: int) -> list[Life] | None:
        """The processes of an incarnation, one per rank, if every rank has appeared in it."""
        lives = [self.life(rank, restarts) for rank in range(len(self._readers))]
        return None if None in lives else lives  # type: ignore[return-value]

    def newest(self) -> int:
        """The restart count of the newest incarnation any rank has appeared in; -1 before the first."""
        return max((life.restarts for reader in self._readers for life in reader.lives), default=-1)

    def steps(self, restarts: int) -> int:
        """Steps that every rank has completed in this incarnation."""
        crew = self.crew(restarts)
        return min(len(life.steps) for life in crew) if crew else 0

    def whole_at(self, restarts: int) -> int | None:
        """When the last rank completed its first step in this incarnation."""
        crew = self.crew(restarts)
        return max(life.steps[0][1] for life in crew) if crew and all(life.steps for life in crew) else None

    def recovered(self, after: int) -> tuple[int, int] | None:
        """The first incarnation after this one in which every rank has completed a step, and when the last did."""
        for restarts in range(after + 1, self.newest() + 1):
            at = self.whole_at(restarts)
            if at is not None:
                return restarts, at
        return None

    def pids(self) -> set[int]:
        return {life.pid for reader in self._readers for life in reader.lives}
