"""Many schedules: `python -m holdfast.testing.simulate --schedules 10000 --seed 0 --jobs 2`.

Prints how hard the schedules were, which pairs of fault and action they covered, and every violation with its seed
and its shrunk schedule, ready for the corpus.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import get_args

import msgspec

from holdfast.core.fold import Delta
from holdfast.model.actions import AnyAction
from holdfast.model.events import AnyEvent
from holdfast.testing import corpus
from holdfast.testing.schedules import KINDS, Schedule, draw
from holdfast.testing.shrink import shrink
from holdfast.testing.world import Violation, World

NO_FAULT = "none"
BATCH = 250
SHRUNK_LIMIT = 5

ACTIONS = tuple(kind.__name__ for kind in get_args(AnyAction))


class Outcome(msgspec.Struct, frozen=True):
    """What came of one schedule."""

    seed: int
    events: int
    faults: tuple[str, ...]
    during_recovery: int
    covered: tuple[tuple[str, str], ...]
    ending: str
    violation: Violation | None


def play(schedule: Schedule) -> Outcome:
    world = World(schedule)
    world.run()
    return Outcome(
        seed=schedule.seed,
        events=world.events,
        faults=tuple(world.faults_hit),
        during_recovery=world.hits_during_recovery,
        covered=tuple(world.covered),
        ending=world.state.status.value,
        violation=world.violation,
    )


def digest(seeds: Iterable[int]) -> str:
    """A fingerprint of everything that happened and was decided: the same on every machine, whatever the hash seed."""
    fingerprint = hashlib.sha256()

    def trace(event: AnyEvent, changes: Delta, actions: tuple[AnyAction, ...]) -> None:
        fingerprint.update(msgspec.json.encode((event, changes, actions)))

    for seed in seeds:
        World(draw(seed), trace).run()
    return fingerprint.hexdigest()


class Survey:
    """What many schedules came to."""

    def __init__(self) -> None:
        self.events: list[int] = []
        self.faults: list[int] = []
        self.during_recovery: list[int] = []
        self.kinds: Counter[str] = Counter()
        self.endings: Counter[str] = Counter()
        self.covered: Counter[tuple[str, str]] = Counter()
        self.failed: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        self.events.append(outcome.events)
        self.faults.append(len(outcome.faults))
        self.during_recovery.append(outcome.during_recovery)
        self.kinds.update(outcome.faults)
        self.endings[outcome.ending] += 1
        self.covered.update(outcome.covered)
        if outcome.violation is not None:
            self.failed.append(outcome)

    @property
    def schedules(self) -> int:
        return len(self.events)

    @property
    def events_median(self) -> float:
        return statistics.median(self.events)

    @property
    def faults_median(self) -> float:
        return statistics.median(self.faults)

    @property
    def recovery_share(self) -> float:
        """Of all faults, how many struck while the job was recovering."""
        return sum(self.during_recovery) / max(1, sum(self.faults))

    @property
    def recovery_spread(self) -> float:
        return sum(count > 0 for count in self.during_recovery) / max(1, self.schedules)

    def __str__(self) -> str:
        endings = ", ".join(f"{count} {ending}" for ending, count in sorted(self.endings.items()))
        pairs = len(self.covered)
        return "\n".join(
            [
                f"{self.schedules} schedules, {sum(self.events)} events, {sum(self.faults)} faults: {endings}",
                f"per schedule, median: {self.events_median:g} events, {self.faults_median:g} faults",
                f"during recovery: {self.recovery_share:.0%} of the faults, in {self.recovery_spread:.0%} of schedules",
                f"pairs of (last fault, action) covered: {pairs} of {(len(KINDS) + 1) * len(ACTIONS)}",
                "",
                self.matrix(),
            ]
        )

    def explained(self) -> list[str]:
        """The first few violations, each with its seed and shrunk."""
        return [explain(draw(o.seed), o.violation) for o in self.failed[:SHRUNK_LIMIT] if o.violation is not None]

    def matrix(self) -> str:
        """In how many schedules each action was decided with each fault as the latest."""
        width = max(map(len, (*KINDS, NO_FAULT)))
        lines = [" " * (width + 8) + "  ".join(f"{name:>{max(5, len(name))}}" for name in ACTIONS)]
        for kind in (NO_FAULT, *KINDS):
            cells = (f"{self.covered[kind, name] or '.':>{max(5, len(name))}}" for name in ACTIONS)
            lines.append(f"{kind:<{width}} {self.kinds[kind] or '':>6} " + "  ".join(cells))
        return "\n".join(lines)


def survey(seeds: Sequence[int], jobs: int = 1) -> Survey:
    found = Survey()
    batches = [seeds[start : start + BATCH] for start in range(0, len(seeds), BATCH)]
    if jobs == 1:
        for batch in batches:
            _gather(found, _play_batch(batch))
        return found
    with ProcessPoolExecutor(jobs) as pool:
        for outcomes in pool.map(_play_batch, batches):
            _gather(found, outcomes)
    return found


def _play_batch(seeds: Sequence[int]) -> list[Outcome]:
    return [play(draw(seed)) for seed in seeds]


def _gather(found: Survey, outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        found.add(outcome)


def explain(schedule: Schedule, violation: Violation) -> str:
    """A violation as somebody who must repair it wants to see it."""

    def fails(fewer: Schedule) -> bool:
        found = play(fewer).violation
        return found is not None and found.invariant == violation.invariant

    small = shrink(schedule, fails)
    return "\n".join(
        [
            f"seed {schedule.seed}: {violation.invariant}: {violation.complaint}",
            f"  at event {violation.event}, {violation.at:.4f} s; shrunk to {len(small.faults)} faults:",
            f"  {corpus.entry(corpus.Known(violation.invariant, small))}",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m holdfast.testing.simulate", description=__doc__)
    parser.add_argument("--schedules", type=int, default=10_000, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first; the others follow (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: %(default)s)")
    parser.add_argument("--corpus", help="a file of schedules that once failed, played first")
    parser.add_argument("--digest", action="store_true", help="print a fingerprint of the traces instead")
    options = parser.parse_args(arguments)
    seeds = range(options.seed, options.seed + options.schedules)
    if options.digest:
        print(digest(seeds))
        return 0
    started = time.perf_counter()
    known = [entry.schedule for entry in corpus.load(options.corpus)] if options.corpus else []
    again = [explain(schedule, found) for schedule in known if (found := play(schedule).violation) is not None]
    if known:
        print(f"{len(known)} schedules that once failed: {len(again)} fail")
    result = survey(seeds, options.jobs)
    print(result)
    print(f"\n{time.perf_counter() - started:.1f} s; {len(result.failed)} schedules violated an invariant")
    print("\n".join(again + result.explained()))
    return 1 if again or result.failed else 0


if __name__ == "__main__":
    sys.exit(main())
