"""The demo while it runs: a live picture on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import math
import time
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from holdfast.core.explain import duration, phases
from holdfast.demo import chart
from holdfast.demo.conditions import Conditions
from holdfast.demo.inject import Made
from holdfast.demo.story import Story

_FRAMES_PER_SECOND = 5
_BAND_STYLES = {
    "start": ("▒", "blue"),
    "new": ("█", "green"),
    "again": ("▓", "yellow"),
    "down": ("✕", "bold red"),
    "end": ("▒", "blue"),
}
_BAND_ORDER = ("start", "end", "new", "again", "down")
_LEGEND = (("start", "start and end"), ("new", "new steps"), ("again", "replayed"), ("down", "down"))
_STATE_STYLES = {"done": "green", "recovering": "yellow", "waiting": "dim"}
_MARGIN = 7
_TALL = 33
_LOWEST_LOSS = 0.01


class View(Protocol):
    """What the stage tells whoever watches."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def began(self, story: Story) -> None: ...
    def tick(self) -> None: ...
    def changed(self, made: Made) -> None: ...
    def ended(self, story: Story) -> None: ...


class PlainView:
    """Start, every quarter, each kill, each recovery, end."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._story: Story | None = None
        self._quarters = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def began(self, story: Story) -> None:
        self._story, self._quarters = story, 0
        self._say(f"{story.name}: {story.title} begins")

    def tick(self) -> None:
        story = self._story
        if story is None or story.trace is None:
            return
        quarter = 4 * story.best_step // story.steps
        if quarter > self._quarters:
            self._quarters = quarter
            losses = story.curve()
            loss = f", loss {losses[-1][1]:.3f}" if losses else ""
            self._say(f"{story.name}: {25 * quarter} %, step {story.best_step} of {story.steps}{loss}")

    def changed(self, made: Made) -> None:
        if made.done and made.back_at_ns is None:
            pids = ", ".join(str(victim.pid) for victim in made.victims)
            self._say(f"   kill {made.fault.number}: {made.fault.target} (pid {pids}) at step {made.fault.step}")
        elif self._story is not None and self._story.trace is not None:
            replayed = made.replayed(self._story.trace)
            self._say(f"   back after {duration(made.back_seconds)}, {replayed} steps replayed")

    def ended(self, story: Story) -> None:
        assert story.run is not None
        self._say(f"{story.name}: {story.standing} after {story.run.seconds:.1f} s")

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


class LiveView:
    """The whole picture, drawn anew a few times per second; its last frame stays on the screen."""

    def __init__(self, console: Console, stories: list[Story], conditions: Conditions) -> None:
        self._console = console
        self._stories = stories
        self._conditions = conditions
        self._drawn_at = 0.0
        self._live = Live(console=console, auto_refresh=False, transient=False, vertical_overflow="crop")

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._draw()
        self._live.__exit__(None, None, None)

    def began(self, story: Story) -> None:  # noqa: ARG002
        self._draw()

    def tick(self) -> None:
        if time.monotonic() - self._drawn_at >= 1 / _FRAMES_PER_SECOND:
            self._draw()

    def changed(self, made: Made) -> None:  # noqa: ARG002
        self._draw()

    def ended(self, story: Story) -> None:  # noqa: ARG002
        self._draw()

    def _draw(self) -> None:
        self._drawn_at = time.monotonic()
        width, height = self._console.size
        self._live.update(Group(*picture(self._stories, self._conditions, width, height - 1)), refresh=True)


def picture(stories: list[Story], conditions: Conditions, width: int, height: int) -> list[Text]:
    """As many lines as fit: progress first, then the kills, then time, and the loss in what is left."""
    hurt = stories[-1]
    head = [_title(conditions)] + [_progress(story, width) for story in stories] + [_standing(hurt)]
    kills = _kills(hurt)
    time_rows = _timeline(hurt, width)
    if height >= _TALL:
        time_rows += _lives(hurt)
    room = height - len(head) - len(kills) - max(len(time_rows), 3) - 3
    loss = _loss(stories, width, min(room, 12)) if room >= 3 else []
    lines = head
    for block in (loss, time_rows, kills):
        if block and len(lines) + len(block) + 1 <= height:
            lines = [*lines, Text(""), *block] if height > 20 else [*lines, *block]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
        line.no_wrap = True
    return lines[:height]


def _title(conditions: Conditions) -> Text:
    return Text.assemble(("holdfast demo", "bold"), ("  " + conditions.brief, "dim"))


def _progress(story: Story, width: int) -> Text:
    seconds = f"{story.run.seconds:5.1f} s" if story.run is not None else "       "
    text = Text.assemble((f"{story.name}  ", "bold"), f"{story.title:<14} ")
    tail = f" {story.step:>{len(str(story.steps))}}/{story.steps} {seconds}  "
    bar = max(8, min(40, width - len(text) - len(tail) - 24))
    full, best = (int(bar * step / story.steps) for step in (story.step, story.best_step))
    style = "green" if story.over else "cyan"
    text.append("━" * full, style)
    text.append("═" * (best - full), "yellow")
    text.append("╌" * (bar - best), "bright_black")
    text.append(tail)
    standing = story.standing
    text.append(standing, _STATE_STYLES.get(standing, "red" if standing.startswith("exit") else ""))
    return text


def _standing(story: Story) -> Text:
    if story.head is None:
        return Text("")
    text = Text()
    if not story.over:
        warm, wanted = story.spares()
        text.append("   spares ")
        text.append("●" * warm, "green")
        text.append("○" * max(0, wanted - warm), "dim")
        text.append(f"   nursery {story.nursery()}")
    if story.goodput is not None:
        so_far = "" if story.over else " so far"
        text.append(f"   goodput{so_far} {100 * story.goodput:.0f} %")
        text.append("  (replays are lost)", "dim")
    return text


def _loss(stories: list[Story], width: int, room: int) -> list[Text]:
    """Both runs on one scale. Where they are equal the second covers the first, which is the point."""
    columns = width - _MARGIN - 1
    curves = [story.curve() for story in stories]
    losses = [max(loss, _LOWEST_LOSS) for curve in curves for _, loss in curve]
    top, bottom = max(losses, default=1.0), min(losses, default=_LOWEST_LOSS)
    reach = math.log(top / bottom) or 1.0
    canvas = chart.Canvas(columns, max(1, room - 2))
    for curve, style in zip(curves, ("bright_black", "cyan"), strict=False):
        canvas.line([(x, math.log(max(loss, _LOWEST_LOSS) / bottom) / reach) for x, loss in curve], style)
    hurt, steps = stories[-1], stories[-1].steps
    heading = Text.assemble(
        ("loss", "bold"),
        ("   ⠤⠤ A ", "bright_black"),
        ("  ⠤⠤ B ", "cyan"),
        ("  ✕ kill ", "red"),
        ("  ▒ replayed", "yellow"),
    )
    rows = canvas.lines()
    drawn = [heading]
    for number, row in enumerate(rows):
        label = f"{top:.2f}" if number == 0 else f"{bottom:.2f}" if number == len(rows) - 1 else ""
        drawn.append(Text.assemble((f"{label:>{_MARGIN - 2}} │", "dim"), row))
    again = [step / steps for low, high in hurt.replayed() for step in range(low, high)]
    marks = chart.marked(
        columns, {"▒": again, "✕": [step / steps for step in hurt.kills()]}, {"▒": "yellow", "✕": "bold red"}
    )
    drawn.append(Text.assemble((f"{'step':>{_MARGIN - 2}} └", "dim"), marks))
    return drawn


def _timeline(story: Story, width: int) -> list[Text]:
    """The run's own time, one bar; below it where each incarnation begins."""
    columns = width - _MARGIN - 1
    bands = story.bands()
    heading = Text.assemble((f"{'time':>{_MARGIN - 2}}  ", "dim"))
    if not bands:
        return []
    whole = max(bands[-1].end, 1.0) * (1.0 if story.over else 1.15)
    ordered = sorted(bands, key=lambda band: _BAND_ORDER.index(band.what))
    bar = chart.banded(columns, [(b.start / whole, b.end / whole, *_BAND_STYLES[b.what]) for b in ordered])
    names = [" "] * columns
    for band in bands:
        if band.what == "new":
            place, name = min(columns - 2, int(band.start / whole * columns)), str(band.life + 1)
            names[place : place + len(name)] = name
    legend = Text(" " * _MARGIN)
    for what, name in _LEGEND:
        mark, style = _BAND_STYLES[what]
        legend.append(f"{mark} ", style)
        legend.append(f"{name}  ", "dim")
    legend.append("numbers: incarnations", "dim")
    return [heading + bar, Text(" " * _MARGIN + "".join(names), "dim"), legend]


def _lives(story: Story) -> list[Text]:
    """One line per incarnation: how it came to be, phase by phase, as the journal has it."""
    rows = []
    for made in story.made():
        if made.back_life is None or (incident := story.incident(made)) is None or incident.recovered_at is None:
            continue
        parts = [f"{part.name} {duration(part.seconds)}" for part in phases(incident) if part.seconds]
        rows.append(
            Text.assemble((f"{made.back_life + 1:>{_MARGIN - 2}}  ", "bold"), (" · ".join(parts) or "no phases", "dim"))
        )
    return rows


def _kills(story: Story) -> list[Text]:
    rows = []
    for made in story.made():
        fault = made.fault
        text = Text(f"  {fault.number}  step {fault.step:>4}  kill {fault.target:<15} ")
        if not made.done:
            text.stylize("dim")
        elif not fault.hurts_workers:
            text.append("killed; training goes on", "green")
        elif made.back_seconds is None:
            text.append("killed", "bold red")
        else:
            text.append(f"back after {duration(made.back_seconds)}", "green")
            replayed = made.replayed(story.trace) if story.trace is not None else None
            text.append(f", {replayed} steps replayed", "yellow")
        rows.append(text)
    return rows
