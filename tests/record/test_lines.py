# ruff: noqa: RUF001
"""Lines on a screen: folded where ranks say the same, coloured by rank, red only for errors."""

from __future__ import annotations

import io

from holdfast.adapters.joblogs import Line, LogLevel
from holdfast.cli.lines import Folded, Painter, fold
from holdfast.cli.show import Screen


def _line(rank, text, wall=1.0, incarnation=1, level=LogLevel.INFO):
    return Line(wall, rank, incarnation, "o", text, level)


def _folded(lines):
    return [(one.line.text, one.ranks) if one else None for one in fold(lines)]


def test_what_ranks_say_alike_is_said_once():
    lines = [_line(rank, text, 1.0 + rank / 100) for rank in range(7) for text in ("loading", "ready")]
    assert _folded(lines) == [("loading", list(range(7))), ("ready", list(range(7)))]


def test_different_lines_stay_where_they_are():
    lines = [_line(0, "a"), _line(1, "b"), _line(0, "c"), _line(1, "a")]
    assert _folded(lines) == [("a", [0, 1]), ("b", [1]), ("c", [0])]


def test_a_rank_that_repeats_itself_is_shown_to():
    assert _folded([_line(0, "x"), _line(0, "x"), _line(1, "x")]) == [("x", [0, 1]), ("x", [0])]


def test_what_is_said_later_is_not_folded():
    assert _folded([_line(0, "x", 1.0), _line(1, "x", 2.0)]) == [("x", [0]), ("x", [1])]
    assert _folded([_line(0, "x"), _line(0, "x", incarnation=2)]) == [("x", [0]), ("x", [0])]


def test_a_pause_lets_out_what_is_held():
    assert _folded([_line(0, "x"), None, _line(1, "x")]) == [("x", [0]), None, ("x", [1])]


def test_nothing_is_held_without_bound():
    assert len(_folded([_line(0, str(number)) for number in range(10_000)])) == 10_000


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def _painted(line, ranks=(0,), stream=None, **options):
    screen = Screen(stream or _Terminal())
    return Painter(screen, **({"timestamps": False} | options)).line(Folded(line, list(ranks)))


def test_red_means_error_and_nothing_else(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for rank in range(20):
        assert "\x1b[31m" not in _painted(_line(rank, "fine"), [rank])
        assert "\x1b[91m" not in _painted(_line(rank, "fine"), [rank])
    assert "\x1b[31mbad" in _painted(_line(0, "bad", level=LogLevel.ERROR))
    assert _painted(_line(0, "x"), [0]) != _painted(_line(1, "x"), [1])


def test_plain_where_colour_is_not_wanted(monkeypatch):
    plain = "r0        x"
    assert _painted(_line(0, "x"), stream=io.StringIO()) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert _painted(_line(0, "x")) == plain
    assert _painted(_line(0, "x"), range(7)) == "×7 ranks  x"


def test_a_new_incarnation_is_announced_once():
    painter = Painter(Screen(io.StringIO()), timestamps=False)
    shown = [painter.line(Folded(_line(0, "x", incarnation=n), [0])) for n in (1, 1, 2, 2)]
    assert [("incarnation" in line) for line in shown] == [False, False, True, False]
