"""Drawing with characters: a loss line through incidents, and a bar of time. Purely computational."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.text import Text

# A braille cell is two dots wide and four high; these are the bits of its dots, by column and row.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BRAILLE = 0x2800


class Canvas:
    """Dots at a resolution of 2 by 4 per character. What is drawn later gives a shared character its style."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self._cells = [[0] * columns for _ in range(rows)]
        self._styles = [[""] * columns for _ in range(rows)]

    def line(self, points: Sequence[tuple[float, float]], style: str) -> None:
        """Through points in the unit square, from the lower left; each column's dots are joined to the last's."""
        last: int | None = None
        for x, y in _by_column(points, self.columns * 2):
            row = round((1 - min(max(y, 0.0), 1.0)) * (self.rows * 4 - 1))
            low, high = sorted((row, row if last is None else last))
            for dot in range(low, high + 1):
                self._dot(x, dot, style)
            last = row

    def _dot(self, x: int, y: int, style: str) -> None:
        column, row = x // 2, y // 4
        self._cells[row][column] |= _DOTS[x % 2][y % 4]
        self._styles[row][column] = style

    def lines(self) -> list[Text]:
        found = []
        for cells, styles in zip(self._cells, self._styles, strict=True):
            text = Text()
            for cell, style in zip(cells, styles, strict=True):
                text.append(chr(_BRAILLE + cell) if cell else " ", style)
            found.append(text)
        return found


def _by_column(points: Sequence[tuple[float, float]], columns: int) -> list[tuple[int, float]]:
    """One point per column of dots: the mean of those that fall into it."""
    sums: dict[int, list[float]] = {}
    for x, y in points:
        sums.setdefault(min(columns - 1, int(x * columns)), []).append(y)
    return [(x, sum(ys) / len(ys)) for x, ys in sorted(sums.items())]


def marked(columns: int, marks: Mapping[str, Iterable[float]], styles: Mapping[str, str], ground: str = "─") -> Text:
    """A line with characters at places in [0, 1]; where two meet the later in `marks` wins."""
    cells = [(ground, "dim")] * columns
    for mark, places in marks.items():
        for place in places:
            cells[min(columns - 1, int(place * columns))] = (mark, styles[mark])
    text = Text()
    for cell, style in cells:
        text.append(cell, style)
    return text


def banded(columns: int, bands: Sequence[tuple[float, float, str, str]], ground: str = "·") -> Text:
    """A bar of (from, to, character, style) in [0, 1]. Later bands win, and each is at least one character wide."""
    cells = [(ground, "dim")] * columns
    for low, high, mark, style in bands:
        first = min(columns - 1, int(low * columns))
        last = min(columns - 1, max(first, int(high * columns) - 1))
        for column in range(first, last + 1):
            cells[column] = (mark, style)
    text = Text()
    for cell, style in cells:
        text.append(cell, style)
    return text
