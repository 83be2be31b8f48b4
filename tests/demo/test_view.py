"""The picture fits whatever terminal it is given, and says what has happened."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from holdfast.demo import chart, view
from holdfast.demo.conditions import Conditions
from holdfast.demo.inject import Injector
from holdfast.demo.plan import make
from holdfast.demo.story import Story
from tests.demo.story import Told

CONDITIONS = Conditions(2, 0.5, "Linux", "3.11", "2.15", seed=1, ranks=2, steps=20)


class Run:
    """As much of a launched run as a picture needs."""

    def __init__(self, trace):
        self.trace, self.launched_ns, self.ended_ns, self.exit_code, self.job = trace, 99 * 10**9, None, None, None

    @property
    def seconds(self):
        return 3.0


def stories(folder, *, killed: bool) -> list[Story]:
    told = Told(folder)
    told.begin()
    told.steps(1, 13)
    plan = make(seed=1, ranks=2, steps=20, kills=5)
    calm, hurt = Story("A", "without faults", 20), Story("B", "with 5 kills", 20, plan)
    calm.run = Run(told.trace())
    trace = told.trace()
    hurt.run = Run(trace)
    hurt.injector = Injector(plan, trace, lambda _fault: [])
    if killed:
        made = _first_worker(hurt)
        made.at_ns = told.now + 1
        told.begin(10)
        told.steps(11, 16)
        trace.poll()
        made.back_life, made.back_at_ns = 1, trace.whole_at(1)
    return [calm, hurt]


def _first_worker(story: Story):
    return next(made for made in story.injector.made if made.fault.hurts_workers)


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (40, 10), (200, 60), (20, 5)])
def test_it_fits(tmp_path, width, height, killed):
    lines = view.picture(stories(tmp_path, killed=killed), CONDITIONS, width, height)
    assert len(lines) <= height
    assert all(line.cell_len <= width for line in lines)


def test_it_says_what_happened(tmp_path):
    told = stories(tmp_path, killed=True)
    text = "\n".join(line.plain for line in view.picture(told, CONDITIONS, 120, 40))
    assert "B  with 5 kills" in text
    assert "incarnation 2" in text
    assert "3 steps replayed" in text
    assert "✕" in text
    assert "▓" in text
    assert "seed 1" in text


def test_before_anything_runs():
    plan = make(seed=1, ranks=2, steps=20)
    lines = view.picture([Story("A", "x", 20), Story("B", "y", 20, plan)], CONDITIONS, 80, 24)
    assert sum("kill" in line.plain for line in lines) >= 5


def test_lines_for_paper(tmp_path):
    console = Console(file=io.StringIO(), width=120)
    _, hurt = stories(tmp_path, killed=True)
    plain = view.PlainView(console)
    with plain:
        plain.began(hurt)
        plain.tick()
        plain.tick()
        plain.changed(_first_worker(hurt))
        plain.ended(hurt)
    text = console.file.getvalue()
    assert text.count("%") == 1
    assert "75 %, step 16 of 20" in text
    assert "3 steps replayed" in text
    assert "\x1b" not in text


def test_time_that_went_into_leaving_is_not_training(tmp_path):
    told = Told(tmp_path)
    told.begin()
    told.steps(1, 20)
    story = Story("A", "x", 20)
    story.run = Run(told.trace())
    story.run.ended_ns = told.now + 5 * 10**9
    assert [(band.what, round(band.end - band.start)) for band in story.bands()] == [
        ("start", 1),
        ("new", 2),
        ("end", 5),
    ]


def test_a_band_is_never_too_narrow_to_see():
    bar = chart.banded(10, [(0.0, 1.0, "a", ""), (0.5, 0.5001, "b", "")])
    assert bar.plain == "aaaaabaaaa"


def test_a_line_goes_from_left_to_right():
    canvas = chart.Canvas(4, 1)
    canvas.line([(0.0, 1.0), (0.999, 0.0)], "")
    assert canvas.lines()[0].plain[0] != " "
    assert canvas.lines()[0].plain[-1] != " "
