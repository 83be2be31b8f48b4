"""Traces as a training run would have left them, told in a few words."""

from __future__ import annotations

import random
from pathlib import Path

from holdfast.demo.traces import Trace

BATCH = 300
SECOND = 1_000_000_000


class Told:
    """A run of `ranks` ranks that makes a step each tenth of a second, and can be hurt."""

    def __init__(self, folder: Path, ranks: int = 2, seed: int = 3) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.ranks, self.seed = folder, ranks, seed
        self.now = 100 * SECOND
        self.life = -1

    def begin(self, resumed_from: int = 0) -> None:
        self.life += 1
        for rank in range(self.ranks):
            self.write(rank, "begin", 1000 + 10 * self.life + rank, self.life, self.now)
            self.write(rank, "ready", resumed_from, self.life, self.now + SECOND // 10)
        self.now += SECOND // 5

    def steps(self, first: int, last: int) -> None:
        for step in range(first, last + 1):
            self.now += SECOND // 10
            for rank in range(self.ranks):
                self.step(rank, step)

    def step(self, rank: int, step: int, *, loss: float | None = None, samples: list[int] | None = None) -> None:
        value = loss if loss is not None else 1 / (step + rank / 10)
        ids = samples if samples is not None else self.batch(step)[rank :: self.ranks]
        self.write(rank, "step", step, value.hex(), ",".join(map(str, ids)), self.life, self.now)

    def batch(self, step: int) -> list[int]:
        """1,500 samples in epochs of five steps."""
        epoch, place = divmod((step - 1) * BATCH, 1500)
        order = list(range(1500))
        random.Random(f"{self.seed}:{epoch}").shuffle(order)
        return order[place : place + BATCH]

    def write(self, rank: int, *words: object) -> None:
        with open(self.folder / f"trace-{rank}", "a") as file:
            file.write(" ".join(map(str, words)) + "\n")

    def trace(self) -> Trace:
        trace = Trace(str(self.folder), self.ranks)
        trace.poll()
        return trace


def calm(folder: Path, steps: int = 20) -> Trace:
    told = Told(folder)
    told.begin()
    told.steps(1, steps)
    return told.trace()


def hurt(folder: Path, steps: int = 20, died_after: int = 13, resumed_from: int = 10) -> Told:
    told = Told(folder)
    told.begin()
    told.steps(1, died_after)
    told.begin(resumed_from)
    told.steps(resumed_from + 1, steps)
    return told
