"""Log lines on a screen: which rank said it, and what several ranks said alike only once.

Red means an error and nothing else; ranks have the other colours.
"""

from __future__ import annotations

import datetime
from collections import OrderedDict
from collections.abc import Iterable, Iterator

import msgspec

from holdfast.adapters.joblogs import Line, LogLevel
from holdfast.cli.show import BOLD, RED, YELLOW, Screen

WINDOW_SECONDS = 0.25  # ranks in step say the same thing within this time
WINDOW_LINES = 2000
_RANK_COLOURS = ("36", "32", "34", "35", "96", "92", "94", "95")
_PREFIX_WIDTH = 9


class Folded(msgspec.Struct):
    """A line and every rank that said it."""

    line: Line
    ranks: list[int]


def fold(lines: Iterable[Line | None]) -> Iterator[Folded | None]:
    """Join what several ranks say alike within a moment, in the place of the first. None (a pause) is passed on.

    A rank that repeats itself is not folded: that it does may be the point.
    """
    held: OrderedDict[tuple[int, str, str, int], Folded] = OrderedDict()
    for line in lines:
        if line is None:
            yield from held.values()
            held.clear()
            yield None
            continue
        while held:
            oldest = next(iter(held.values()))
            if line.wall - oldest.line.wall <= WINDOW_SECONDS and len(held) < WINDOW_LINES:
                break
            yield held.popitem(last=False)[1]
        _join(held, line)
    yield from held.values()


def _join(held: OrderedDict[tuple[int, str, str, int], Folded], line: Line) -> None:
    repeat = 0
    while True:
        key = (line.incarnation, line.stream, line.text, repeat)
        if (known := held.get(key)) is None:
            held[key] = Folded(line, [line.rank])
            return
        if line.rank not in known.ranks:
            known.ranks.append(line.rank)
            return
        repeat += 1


class Painter:
    """Turns lines into text, and notes where an incarnation begins."""

    def __init__(self, screen: Screen, *, timestamps: bool) -> None:
        self._screen = screen
        self._timestamps = timestamps
        self._incarnation = 0
        self.painted = False

    def line(self, folded: Folded) -> str:
        line, paint = folded.line, self._screen.paint
        self.painted = True
        several = len(folded.ranks) > 1
        who = f"×{len(folded.ranks)} ranks" if several else f"r{line.rank}"  # noqa: RUF001
        colour = BOLD if several else _RANK_COLOURS[line.rank % len(_RANK_COLOURS)]
        loud = {LogLevel.ERROR: RED, LogLevel.WARNING: YELLOW}.get(line.level, "")
        clock = f"{_clock(line.wall)} " if self._timestamps else ""
        return f"{self._heading(line)}{clock}{paint(f'{who:<{_PREFIX_WIDTH}}', colour)} {paint(line.text, loud)}"

    def _heading(self, line: Line) -> str:
        """Said once per incarnation, and not for the first: most jobs have no other."""
        if line.incarnation <= self._incarnation:
            return ""
        first, self._incarnation = not self._incarnation, line.incarnation
        return (
            ""
            if first and line.incarnation == 1
            else self._screen.paint(f"── incarnation {line.incarnation} ──\n", BOLD)
        )


def _clock(wall: float) -> str:
    return datetime.datetime.fromtimestamp(wall).astimezone().strftime("%H:%M:%S.%f")[:-3]
