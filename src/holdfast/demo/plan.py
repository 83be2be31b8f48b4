"""Which processes are killed, and at which steps: from a seed alone, known before anything starts.

Purely computational. The order of the list in `_kinds` is the order in which kinds of faults are dropped or repeated
when fewer or more of them are asked for, not the order in which they happen.
"""

from __future__ import annotations

import random

import msgspec

KILLS = 5
_BEFORE, _AFTER = 0.1, 0.92  # the share of the steps before the first kill, and up to the last
_WITHIN = (0.15, 0.85)  # of the stretch of steps that belongs to a kill
_DELAY_SECONDS = 0.02  # about one step, so that kills hit any place within a step


class Fault(msgspec.Struct, frozen=True):
    """SIGKILL to these, `delay_seconds` after the first rank was seen to complete `step`."""

    number: int
    step: int
    kind: str  # worker, spare, nursery
    ranks: tuple[int, ...] = ()
    delay_seconds: float = 0.0

    @property
    def target(self) -> str:
        if self.kind != "worker":
            return "a spare" if self.kind == "spare" else "the nursery"
        names = " and ".join(map(str, self.ranks))
        return f"rank {names}" if len(self.ranks) == 1 else f"ranks {names}"

    @property
    def hurts_workers(self) -> bool:
        return self.kind == "worker"


def make(*, seed: int, ranks: int, steps: int, kills: int = KILLS) -> tuple[Fault, ...]:
    dice = random.Random(seed)
    wanted = _kinds(dice, ranks, kills)
    first, last = steps * _BEFORE, steps * _AFTER
    stretch = (last - first) / max(1, len(wanted))
    return tuple(
        Fault(
            number=number,
            step=max(1, int(first + stretch * (number - 1 + dice.uniform(*_WITHIN)))),
            kind=kind,
            ranks=hit,
            delay_seconds=round(dice.uniform(0, _DELAY_SECONDS), 4),
        )
        for number, (kind, hit) in enumerate(_arranged(dice, wanted), start=1)
    )


def _kinds(dice: random.Random, ranks: int, kills: int) -> list[tuple[str, tuple[int, ...]]]:
    other = (dice.randrange(1, ranks),) if ranks > 1 else (0,)
    pair = tuple(sorted(dice.sample(range(ranks), min(2, ranks))))
    kinds = [("worker", (0,)), ("worker", other), ("worker", pair), ("spare", ()), ("nursery", ())][:kills]
    while len(kinds) < kills:
        size = min(ranks, dice.choice((1, 1, 2)))
        kinds.append(("worker", tuple(sorted(dice.sample(range(ranks), size)))))
    return kinds


def _arranged(dice: random.Random, kinds: list[tuple[str, tuple[int, ...]]]) -> list[tuple[str, tuple[int, ...]]]:
    """In any order, but the nursery late: after it, and before another is warm, only spares can help."""
    others = [kind for kind in kinds if kind[0] != "nursery"]
    dice.shuffle(others)
    for nursery in (kind for kind in kinds if kind[0] == "nursery"):
        others.insert(max(0, len(others) - 1), nursery)
    return others
