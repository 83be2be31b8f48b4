"""How commands print: JSON for programs, colour for terminals, aligned words for everything else.

Nothing here knows what it prints. rich is loaded only for a table on a terminal; NO_COLOR is obeyed.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

import msgspec

from holdfast.model.errors import UsageError

SCHEMA = 1
RED, YELLOW, GREEN, CYAN, BOLD, DIM = "31", "33", "32", "36", "1", "2"
STATUS_COLOURS = {
    "RUNNING": GREEN,
    "RECOVERING": YELLOW,
    "COMPLETED": GREEN,
    "FAILED": RED,
    "LOST": RED,
    "recovered": GREEN,
    "failed": RED,
    "open": YELLOW,
}
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def add_json(parser: argparse.ArgumentParser, what: str = "one JSON document") -> None:
    parser.add_argument("--json", action="store_true", help=f"print {what}")


class Screen:
    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream if stream is not None else sys.stdout
        self.terminal = self.stream.isatty()
        self.colour = self.terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def line(self, text: str = "") -> None:
        self.stream.write(text + "\n")

    def paint(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self.colour and colour else text

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """A heading and rows. On a terminal the last column gives way; elsewhere nothing is ever cut."""
        body = [[str(cell) for cell in row] for row in rows]
        if self.colour:
            self._rich_table(columns, body)
            return
        widths = [max(len(row[n]) for row in [list(columns), *body]) for n in range(len(columns))]
        for row in [list(columns), *body]:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            self.line("  ".join(cells).rstrip())

    def _rich_table(self, columns: Sequence[str], body: list[list[str]]) -> None:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
        for number, column in enumerate(columns):
            last = number == len(columns) - 1
            table.add_column(column, no_wrap=True, overflow="ellipsis", ratio=1 if last else None)
        for row in body:
            table.add_row(*(Text.from_ansi(self.paint(cell, STATUS_COLOURS.get(cell, ""))) for cell in row))
        Console(file=self.stream).print(table)

    def fields(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Names and values, the empty ones left out."""
        for name, value in pairs:
            if value:
                self.line(f"{self.paint(f'{name:<12}', BOLD)}{self.paint(value, STATUS_COLOURS.get(value, ''))}")


def document(screen: Screen, **content: object) -> None:
    """The one document of --json."""
    data = msgspec.json.encode({"schema": SCHEMA, **content})
    screen.line(msgspec.json.format(data, indent=2).decode())


def list_document(screen: Screen, key: str, items: Iterable[object], **content: object) -> None:
    """The same with one list that may be too long to hold."""
    head = msgspec.json.encode({"schema": SCHEMA, **content}).decode()
    screen.stream.write(f'{head[:-1]},"{key}":[')
    for number, item in enumerate(items):
        screen.stream.write((",\n" if number else "\n") + msgspec.json.encode(item).decode())
    screen.line("\n]}")


def row(screen: Screen, item: object) -> None:
    """One line of NDJSON, at once."""
    screen.line(msgspec.json.encode(item).decode())
    screen.stream.flush()


# -- words


def time_of_day(wall: float | None) -> str:
    if wall is None:
        return ""
    return datetime.datetime.fromtimestamp(wall).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def age(seconds: float) -> str:
    """One or two units, as much as anybody reads."""
    seconds = max(0, int(seconds))
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


# -- arguments


def parse_ranks(text: str) -> frozenset[int]:
    """ "0,3-5" is {0, 3, 4, 5}."""
    ranks: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip())
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise argparse.ArgumentTypeError(f"{text!r} is no list of ranks such as 0,3-5")
        ranks |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(ranks)


def parse_pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from error


def parse_count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no count")
    return int(text)


def moment(text: str | None, now: float) -> float | None:
    """A time of day from "10m" (ago), an ISO time, or seconds since 1970."""
    if text is None:
        return None
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text):
        return now - float(match[1]) * _UNITS[match[2]]
    if re.fullmatch(r"\d{9,}(\.\d+)?", text):
        return float(text)
    try:
        parsed = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{text!r} is no time", remedy="Give 10m, 2h, an ISO time such as 2026-11-19T21:42, or seconds since 1970."
        ) from None
    return parsed.astimezone().timestamp() if parsed.tzinfo is None else parsed.timestamp()


def bars(parts: Iterable[tuple[str, float]], whole: float, width: int = 30) -> Iterator[tuple[str, str, str]]:
    """Each part's name, share and bar."""
    for name, part in parts:
        share = part / whole if whole > 0 else 0.0
        yield name, f"{100 * share:.1f} %", "█" * round(share * width) or ("▏" if part > 0 else "")
