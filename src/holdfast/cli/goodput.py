"""`holdfast goodput`: where a job's wall time went, to the last millisecond."""

from __future__ import annotations

import argparse
import os
import socket
import time

from holdfast.adapters import catalogue
from holdfast.adapters.catalogue import Job
from holdfast.adapters.home import Home
from holdfast.adapters.sqlite_journal import UnreadableError, read_entries
from holdfast.cli import show
from holdfast.cli.show import Screen
from holdfast.core.explain import duration
from holdfast.core.goodput import Goodput, account
from holdfast.model.errors import HoldfastError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", nargs="?", default="last", help="default: the newest job")
    show.add_json(parser)


def main(namespace: argparse.Namespace) -> int:
    job = catalogue.find(Home.find(os.environ), namespace.job)
    screen = Screen()
    try:
        result = account(read_entries(job.folder.journal), until=_now(job))
    except UnreadableError as error:
        raise HoldfastError("its journal cannot be read", where=job.id, why=str(error)) from error
    if namespace.json:
        show.document(screen, job=job.id, name=job.name, status=job.status, goodput=result)
    else:
        _print(job, result, screen)
    return 0


def _now(job: Job) -> float | None:
    """The agent's clock is this machine's, as long as both have been up since the same boot: a living agent has."""
    here = job.head is not None and job.head.meta.host == socket.gethostname()
    return time.monotonic() if job.alive and here else None


def _print(job: Job, result: Goodput, screen: Screen) -> None:
    share = "unknown" if result.goodput is None else f"{100 * result.goodput:.1f} %"
    screen.line(
        screen.paint(f"goodput {share} of {duration(result.wall_seconds)}", show.BOLD) + f"  {job.id} {job.name}"
    )
    rows = []
    parts = [(name, seconds) for name, seconds in result.buckets.items() if seconds > 0]
    for (name, part, bar), (_, seconds) in zip(show.bars(parts, result.wall_seconds), parts, strict=True):
        rows.append((name.replace("_", " "), duration(seconds), part, bar))
    total = sum(result.buckets.values())
    rows.append(("sum", duration(total), "100.0 %" if result.wall_seconds else "", ""))
    screen.table(("BUCKET", "TIME", "SHARE", ""), rows)
    steps = "unknown" if result.steps is None else str(result.steps)
    lost = "unknown" if result.steps_lost is None else str(result.steps_lost)
    screen.line(f"newest step {steps}, steps lost {lost}, {show.plural(result.incidents, 'incident')}")
    for note in result.notes:
        screen.line(f"note: {note}")
