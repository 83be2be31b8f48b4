"""`holdfast demo`: a training run, the same run under a plan of kills, and a verdict from their files."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from typing import Any

from holdfast.cli import show
from holdfast.cli.show import Screen

SEED = 2026
STEPS = 400
RANKS = 4
_PAPER_COLUMNS = 120


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=_between(1, 64), default=RANKS, metavar="N", help=f"default: {RANKS}")
    parser.add_argument("--steps", type=_between(60, 1_000_000), default=STEPS, metavar="N", help=f"default: {STEPS}")
    parser.add_argument(
        "--seed", type=_between(0, 2**31), default=SEED, metavar="N", help=f"of training and plan (default: {SEED})"
    )
    parser.add_argument(
        "--kills",
        type=_between(0, 20),
        default=5,
        metavar="N",
        help="default: 5, which are rank 0, another rank, two ranks at once, a spare, and the nursery",
    )
    parser.add_argument(
        "--compare", choices=("torchrun",), help="then the same kills under torchrun, which takes minutes"
    )
    parser.add_argument("--no-live", action="store_true", help="lines instead of a picture, on a terminal too")
    parser.add_argument("--keep", metavar="DIR", help="keep traces, checkpoints and output in this folder")
    show.add_json(parser)


def main(namespace: argparse.Namespace) -> int:
    before = signal.signal(signal.SIGTERM, _interrupt)
    folder = _folder(namespace.keep)
    keeps = namespace.keep is not None
    try:
        holds = _show(namespace, folder)
        keeps = keeps or not holds
    finally:
        signal.signal(signal.SIGTERM, before)
        if keeps:
            print(f"everything the runs wrote: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return 0 if holds else 1


def _show(namespace: argparse.Namespace, folder: str) -> bool:
    from rich.console import Console

    from holdfast.demo import compare, conditions, plan, present, stage, verdict
    from holdfast.demo.story import Story
    from holdfast.demo.view import LiveView, PlainView, View

    console = Console(stderr=namespace.json)
    if not console.is_terminal:
        console.width = _PAPER_COLUMNS
    seen = conditions.observe(seed=namespace.seed, ranks=namespace.ranks, steps=namespace.steps)
    options = stage.Options(ranks=namespace.ranks, steps=namespace.steps, seed=namespace.seed, folder=folder)
    faults = plan.make(seed=namespace.seed, ranks=namespace.ranks, steps=namespace.steps, kills=namespace.kills)
    stories = [
        Story("A", "without faults", namespace.steps),
        Story("B", f"with {show.plural(len(faults), 'kill')}", namespace.steps, faults),
    ]
    live = console.is_terminal and not namespace.no_live and not namespace.json
    view: View = LiveView(console, stories, seen) if live else PlainView(console)
    if not live:
        console.print(f"holdfast demo: {seen.sentence}", highlight=False, markup=False, soft_wrap=True)
    present.plan(console, faults, seen)
    with view:
        calm = stage.perform(stories[0], (), options, view)
        if calm.exit_code != 0:
            return _broken(console, stories[0])
        if not stories[0].spares()[1] and any(fault.kind == "spare" for fault in faults):
            faults = tuple(fault for fault in faults if fault.kind != "spare")
            stories[1].plan = faults
            stories[1].title = f"with {show.plural(len(faults), 'kill')}"
            console.print("no spares are kept on this machine, so none is killed", highlight=False)
        hurt = stage.perform(stories[1], faults, options, view)
    made = stories[1].injector.made if stories[1].injector is not None else []
    judged = verdict.judge(calm, hurt, made, namespace.steps)
    present.verdict(console, judged, calm, hurt, seen)
    compared: list[compare.Comparison] = []
    if namespace.compare and any(fault.hurts_workers for fault in faults):
        minutes = compare.most_seconds(faults) / 60
        console.print(f"\nNow torchrun, in its own time ({minutes:.0f} minutes at the very most).", highlight=False)
        for setting in compare.SETTINGS:
            console.print(f"torchrun, {setting.name}:", highlight=False, markup=False)
            compared.append(
                compare.run(setting, faults, options, lambda text: console.print(text, highlight=False, markup=False))
            )
        present.comparison(console, compared, judged.rows, (calm.result or {}).get("weights_sha256", ""))
    if namespace.json:
        show.document(Screen(), **present.document(judged, calm, hurt, seen, compared))
    elif hurt.job_id:
        for command in ("incidents explain", "goodput", "replay"):
            console.print(f"  holdfast {command} {hurt.job_id}", highlight=False, soft_wrap=True)
    if hurt.exit_code != 0:
        _broken(console, stories[1])
    return judged.holds


def _broken(console: Any, story: Any) -> bool:
    console.print(f"run {story.name} failed ({story.standing}); its last output:", style="bold red", highlight=False)
    console.print(story.run.last_words() if story.run else "", highlight=False, markup=False, soft_wrap=True)
    return False


def _folder(keep: str | None) -> str:
    if keep is None:
        return tempfile.mkdtemp(prefix="holdfast-demo-")
    os.makedirs(keep, exist_ok=True)
    return tempfile.mkdtemp(prefix="demo-", dir=os.path.abspath(keep))


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _between(low: int, high: int) -> Any:
    def parse(text: str) -> int:
        if not text.isdigit() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is no number from {low} to {high}")
        return int(text)

    return parse
