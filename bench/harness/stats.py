"""Numbers and their spread. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """What is said about a set of measurements: the middle, the range of the middle eighty per cent, how many."""

    count: int
    p10: float
    median: float
    p90: float
    low: float
    high: float


def quantile(values: list[float], share: float) -> float:
    """Linear between the two nearest; `values` are sorted."""
    place = share * (len(values) - 1)
    below = math.floor(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (place - below)


def spread(values: Iterable[float | None]) -> Spread | None:
    """Of those that were measured; None if none was."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    p10, median, p90 = (quantile(known, share) for share in (0.1, 0.5, 0.9))
    return Spread(len(known), p10, median, p90, known[0], known[-1])


def median(values: Iterable[float | None]) -> float | None:
    found = spread(values)
    return found.median if found else None
