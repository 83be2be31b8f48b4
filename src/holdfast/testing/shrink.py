"""The smallest schedule that still fails: faults are dropped one by one while the same invariant complains."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from holdfast.testing.schedules import Schedule


def shrink(schedule: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    smaller = True
    while smaller:
        smaller = False
        for index in reversed(range(len(schedule.faults))):
            fewer = replace(schedule, faults=schedule.faults[:index] + schedule.faults[index + 1 :])
            if fails(fewer):
                schedule, smaller = fewer, True
    return schedule
