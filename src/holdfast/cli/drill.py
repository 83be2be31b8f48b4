"""`holdfast drill`: hurt a running job on purpose, through the operating system, where the job allows it."""

from __future__ import annotations

import argparse
import os
from typing import Any

from holdfast.adapters import catalogue
from holdfast.adapters.home import Home
from holdfast.adapters.injection import Kind, drills
from holdfast.adapters.injection.drills import Drill, Injection, Target
from holdfast.adapters.sqlite_journal import UnreadableError
from holdfast.cli import show
from holdfast.cli.show import Screen
from holdfast.model.errors import HoldfastError, UsageError

_SUMMARIES = {
    "kill": "SIGKILL",
    "stop": "SIGSTOP",
    "cont": "SIGCONT: undo stop",
    "segv": "SIGSEGV",
    "term": "SIGTERM",
    "oom": "the kernel's out-of-memory killer, in a memory cgroup",
    "exit": "the process calls exit, through ptrace",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    faults = ", ".join(f"{name} ({what})" for name, what in _SUMMARIES.items())
    parser.add_argument("fault", choices=drills.FAULTS, metavar="FAULT", help=faults)
    parser.add_argument(
        "job", metavar="JOB", help="an id, its beginning, a name, or `last`; started with --allow-drills"
    )
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--rank", type=show.parse_ranks, metavar="0,3-5", help="these ranks, at once")
    target.add_argument("--random", action="store_true", help="a rank chosen by --seed (the default)")
    target.add_argument("--all", action="store_true", help="every rank, at once")
    target.add_argument("--spare", action="store_true", help="a warm spare")
    target.add_argument("--nursery", action="store_true", help="the process that forks workers")
    target.add_argument("--store", action="store_true", help="the process that serves the store")
    parser.add_argument(
        "--seed", type=show.parse_count, metavar="N", help="what chance follows from (default: a new one)"
    )
    parser.add_argument("--count", type=_positive, default=1, metavar="N", help="this many faults (default: 1)")
    parser.add_argument(
        "--every", type=_seconds, default=5.0, metavar="SECONDS", help="between two faults (default: 5)"
    )
    parser.add_argument("--code", type=_exit_code, default=1, metavar="N", help="for exit: 0 to 255 (default: 1)")
    show.add_json(parser)


def main(namespace: argparse.Namespace) -> int:
    job = catalogue.find(Home.find(os.environ), namespace.job)
    drill = _drill(namespace)
    screen = Screen()
    made: list[Injection] = []
    try:
        for injection in drills.perform(drill, job.folder.journal):
            made.append(injection)
            if not namespace.json:
                screen.line(_told(injection))
                screen.stream.flush()
    except UnreadableError as error:
        raise HoldfastError("its journal cannot be read", where=job.id, why=str(error)) from error
    effective = all(injection.effective for injection in made)
    if namespace.json:
        show.document(screen, job=job.id, name=job.name, seed=drill.seed, injections=[_data(i) for i in made])
    else:
        if _is_random(drill):
            screen.line(f"chosen with seed {drill.seed}; the same again: --seed {drill.seed}")
        screen.line(f"what came of it: holdfast incidents explain {job.id} · holdfast jobs show {job.id}")
    return 0 if effective else 1


def _drill(namespace: argparse.Namespace) -> Drill:
    kind = next(
        (kind for kind in (Kind.SPARE, Kind.NURSERY, Kind.STORE) if getattr(namespace, kind.value)), Kind.WORKER
    )
    ranks = tuple(sorted(namespace.rank or ()))
    if namespace.code != 1 and namespace.fault != "exit":
        raise UsageError("--code belongs to `exit`", where="holdfast drill")
    return Drill(
        fault=namespace.fault,
        target=Target(kind, ranks, everyone=namespace.all),
        seed=namespace.seed if namespace.seed is not None else int.from_bytes(os.urandom(3)),
        count=namespace.count,
        every_seconds=namespace.every,
        code=namespace.code,
    )


def _is_random(drill: Drill) -> bool:
    return drill.target.kind is Kind.WORKER and not drill.target.ranks and not drill.target.everyone


def _told(injection: Injection) -> str:
    who = " and ".join(f"{victim.name} (pid {victim.pid})" for victim in injection.victims)
    note = f": {injection.note}" if injection.note else ""
    return f"{injection.fault} → {who}{note}"


def _data(injection: Injection) -> dict[str, Any]:
    return {
        "fault": injection.fault,
        "at_monotonic_ns": injection.at_ns,
        "effective": injection.effective,
        "note": injection.note,
        "victims": [
            {"kind": v.kind, "rank": v.rank, "pid": v.pid, "id": v.id, "incarnation": v.incarnation}
            for v in injection.victims
        ],
    }


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no count from 1")
    return int(text)


def _exit_code(text: str) -> int:
    if not text.isdigit() or int(text) > 255:
        raise argparse.ArgumentTypeError(f"{text!r} is no exit code from 0 to 255")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return seconds
