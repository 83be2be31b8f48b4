"""The two runs, one after the other, and what is made of them. Every wait has a bound."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.adapters.injection import Kind, Victim, drills
from holdfast.adapters.sqlite_journal import UnreadableError, read_entries
from holdfast.demo.inject import Injector
from holdfast.demo.launch import HoldfastRun
from holdfast.demo.plan import Fault
from holdfast.demo.story import Story
from holdfast.demo.verdict import Facts
from holdfast.demo.view import View

QUIET_SECONDS = 120.0  # without a line in the trace: longer than the slowest start
_LOOK_SECONDS = 0.005
_IDLE_SECONDS = 0.05


class Options(msgspec.Struct, frozen=True):
    ranks: int
    steps: int
    seed: int
    folder: str
    checkpoint_every: int = 20

    def script_arguments(self) -> list[str]:
        return [
            *("--steps", str(self.steps)),
            *("--seed", str(self.seed)),
            *("--checkpoint-every", str(self.checkpoint_every)),
        ]


def perform(story: Story, plan: Sequence[Fault], options: Options, view: View) -> Facts:
    """One run from launch to end, with the faults of the plan."""
    folder = os.path.join(options.folder, f"run-{story.name.lower()}")
    run = HoldfastRun(
        f"demo-{story.name.lower()}",
        folder,
        options.ranks,
        options.script_arguments(),
        allow_drills=bool(plan),
    )
    story.run = run
    try:
        if plan:
            story.injector = Injector(plan, run.trace, lambda fault: _victims(run, fault))
        view.began(story)
        _watch(story, run, view)
        if run.exit_code is None:
            run.stop()
        left = run.left_over()
    finally:
        run.stop()
    story.over = True
    story.look()
    view.ended(story)
    return _facts(run, left)


def _watch(story: Story, run: HoldfastRun, view: View) -> None:
    """Until the run is over, or nothing has come from it for too long."""
    heard_at = time.monotonic()
    lines = 0
    while run.poll():
        trace = run.trace
        if len(trace.steps) + len(trace.begun) > lines:
            lines, heard_at = len(trace.steps) + len(trace.begun), time.monotonic()
        elif time.monotonic() - heard_at > QUIET_SECONDS:
            return
        if story.injector is not None and (changed := story.injector.look()) is not None:
            view.changed(changed)
        story.look()
        view.tick()
        time.sleep(_LOOK_SECONDS if trace.steps else _IDLE_SECONDS)
    if story.injector is not None:
        story.injector.look()


def _victims(run: HoldfastRun, fault: Fault) -> list[Victim]:
    """From the journal and the kernel, as a drill would find them."""
    head = run.head()
    return drills.find(head, Kind(fault.kind), fault.ranks) if head is not None else []


def _facts(run: HoldfastRun, left: list[int]) -> Facts:
    head, job = run.head(), run.job
    entries = []
    if job is not None:
        with contextlib.suppress(UnreadableError):
            entries = list(read_entries(job.journal))
    return Facts(
        exit_code=run.exit_code,
        seconds=run.seconds,
        trace=run.trace,
        result=read_result(run.folder),
        state=head.state if head is not None else None,
        entries=entries,
        left_over=left,
        job_id=str(job.id) if job is not None else "",
    )


def read_result(folder: str) -> dict[str, Any] | None:
    try:
        with open(os.path.join(folder, "result.json"), encoding="utf-8") as file:
            result: dict[str, Any] = json.load(file)
            return result
    except (OSError, ValueError):
        return None
