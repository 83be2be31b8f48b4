"""What one simulated job is: its terms, its script and the faults it will meet. All of it follows from a seed.

A fault waits for a moment of the job (a phase, a first step, a loss) and strikes shortly after it, because faults at
evenly spread times would nearly all hit a quiet job.
"""

from __future__ import annotations

from random import Random

import msgspec

from holdfast.model.spec import Limits, Start, Terms

MOMENTS = {
    "warming": 1,
    "mustering": 5,
    "training": 9,
    "step": 9,
    "loss": 9,
    "releasing": 8,
    "resting": 2,
    "recovering": 9,  # mustering or training again, with the incident still open
    "ended": 2,
    "leaving": 2,
    "stopping": 1,
    "failing": 1,
}

KINDS = {
    "kill_worker": 18,
    "kill_several": 5,
    "kill_all": 3,
    "raise_once": 3,
    "raise_always": 1,
    "exit_code": 1,
    "exit_zero": 1,
    "pause_worker": 3,
    "freeze_worker": 3,
    "hide_worker": 2,
    "kill_hidden": 2,
    "make_unkillable": 1,
    "make_deaf": 3,
    "slow_to_die": 3,
    "slow_to_release": 2,
    "hang_at_exit": 3,
    "crash_at_exit": 2,
    "kill_idle": 4,
    "freeze_idle": 1,
    "kill_nursery": 3,
    "nursery_unfit": 2,
    "nursery_hangs": 1,
    "nursery_dies_young": 2,
    "nursery_slow": 1,
    "kill_keeper": 4,
    "freeze_keeper": 2,
    "birth_fails": 3,
    "birth_hangs": 2,
    "birth_dies": 2,
    "warm_dies": 2,
    "forks_broken": 1,
    "everything_broken": 1,
    "warm_always_dies": 1,
    "store_fails": 2,
    "store_hangs": 2,
    "store_late": 2,
    "old_news": 5,
    "sources_change": 1,
    "stop": 1,
    "stop_twice": 1,
}


class Fault(msgspec.Struct, frozen=True):
    kind: str
    moment: str
    nth: int  # which occurrence of the moment it waits for
    delay: float
    pick: float  # in [0, 1): whom it hits


class Script(msgspec.Struct, frozen=True):
    """What the simulated workers run."""

    steps: int
    commit_every: int
    step_seconds: float
    countable: bool  # whether steps can be seen from outside


class Schedule(msgspec.Struct, frozen=True):
    seed: int
    terms: Terms
    script: Script
    faults: tuple[Fault, ...]


def draw(seed: int) -> Schedule:
    rng = Random(seed)
    return Schedule(seed=seed, terms=_terms(rng), script=_script(rng), faults=_faults(rng))


def _terms(rng: Random) -> Terms:
    return Terms(
        world=rng.choice((1, 2, 3, 4, 4, 6)),
        start=Start.NURSERY if rng.random() < 0.85 else Start.COLD,
        keeper=rng.random() < 0.8,
        spares=rng.choice((0, 1, 1, 2)),
        max_restarts=rng.choice((None, None, None, None, None, None, 0, 1, 3, 20)),
        budget=rng.choice((1, 3, 10, 10)),
        refill_steps=rng.choice((0, 3, 3, 10)),
        policy="stop" if rng.random() < 0.03 else "restart",
        shell_codes=rng.random() < 0.1,
        limits=Limits(grace_seconds=rng.choice((0.0, 0.05, 0.05, 2.0, 45.0))),
    )


def _script(rng: Random) -> Script:
    return Script(
        steps=rng.randrange(8, 50),
        commit_every=rng.choice((1, 2, 5)),
        step_seconds=rng.choice((0.02, 0.3, 2.0)),
        countable=rng.random() < 0.85,
    )


def _faults(rng: Random) -> tuple[Fault, ...]:
    count = rng.choice((8, 12, 16, 20))
    kinds = rng.choices(_KIND_NAMES, cum_weights=_KIND_WEIGHTS, k=count)
    moments = rng.choices(_MOMENT_NAMES, cum_weights=_MOMENT_WEIGHTS, k=count)
    return tuple(
        Fault(
            kind=kind,
            moment=moment,
            nth=rng.choice((1, 1, 1, 1, 2, 3)),
            delay=round(rng.choice((0.0, 0.001, 0.01, 0.3, 3.0)) * rng.random(), 6),
            pick=rng.randrange(1000) / 1000,
        )
        for kind, moment in zip(kinds, moments, strict=True)
    )


def _cumulated(weights: dict[str, int]) -> list[int]:
    total, sums = 0, []
    for weight in weights.values():
        total += weight
        sums.append(total)
    return sums


_KIND_NAMES, _KIND_WEIGHTS = tuple(KINDS), _cumulated(KINDS)
_MOMENT_NAMES, _MOMENT_WEIGHTS = tuple(MOMENTS), _cumulated(MOMENTS)
