"""`holdfast replay`: rebuild a job's state from its journal, and prove that this is the state the agent had."""

from __future__ import annotations

import argparse
import os
from typing import Any

import msgspec

from holdfast.adapters import catalogue
from holdfast.adapters.home import Home
from holdfast.adapters.sqlite_journal import Head, UnreadableError, read_entries
from holdfast.cli import show
from holdfast.cli.show import Screen
from holdfast.core.record import Record, Replay, replay
from holdfast.model.errors import HoldfastError
from holdfast.model.state import JobState


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", nargs="?", default="last", help="default: the newest job")
    parser.add_argument("--to", type=show.parse_count, metavar="SEQ", help="stop after this record")
    parser.add_argument("--events", action="store_true", help="also print each record: event, actions, reason")
    show.add_json(parser)


def main(namespace: argparse.Namespace) -> int:
    """1 if the journal and the state that was kept beside it disagree."""
    job = catalogue.find(Home.find(os.environ), namespace.job)
    if job.head is None:
        raise HoldfastError("its journal cannot be read", where=job.id, why=job.trouble)
    try:
        entries = list(read_entries(job.folder.journal, to=job.head.seq))  # a living job may be further by now
    except UnreadableError as error:
        raise HoldfastError("its journal cannot be read", where=job.id, why=str(error)) from error
    whole = replay(entries)
    wrong = differences(whole, job.head)
    shown = whole if namespace.to is None else replay(entries, namespace.to)
    records = [
        entry for entry in entries if isinstance(entry, Record) and (namespace.to is None or entry.seq <= namespace.to)
    ]
    screen = Screen()
    if namespace.json:
        extra: dict[str, Any] = {"events": records} if namespace.events else {}
        verdict = {"equal": not wrong, "differences": wrong, "missing": shown.missing}
        show.document(screen, job=job.id, seq=shown.seq, **verdict, state=shown.state, **extra)
    else:
        if namespace.events:
            _print_events(screen, records)
        _print_state(screen, shown, wrong)
    return 1 if wrong else 0


def differences(replayed: Replay, head: Head) -> list[str]:
    """Fields in which the fold of the journal and the agent's own state differ."""
    if replayed.seq != head.seq:
        return ["seq"]
    return [name for name in JobState.__struct_fields__ if getattr(replayed.state, name) != getattr(head.state, name)]


def _print_events(screen: Screen, records: list[Record]) -> None:
    start = records[0].at if records else 0.0
    for record in records:
        facts = {key: value for key, value in record.event.items() if key not in ("type", "at", "terms")}
        shown = " ".join(f"{key}={_short(value)}" for key, value in facts.items() if value not in (None, [], ""))
        screen.line(
            f"{record.seq:>6} {record.at - start:>10.3f}  {screen.paint(record.kind, show.CYAN)} {shown}".rstrip()
        )
        if record.reason:
            screen.line(f"{'':>19}because {record.reason}")
        for action in record.actions:
            does = " ".join(f"{key}={_short(value)}" for key, value in action.items() if key != "type")
            screen.line(f"{'':>19}→ {action.get('type')} {does}".rstrip())
    screen.line()


def _short(value: object) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= 80 else text[:77] + "..."


def _print_state(screen: Screen, shown: Replay, wrong: list[str]) -> None:
    state = shown.state
    screen.line(msgspec.json.format(msgspec.json.encode(state), indent=2).decode())
    screen.line()
    for first, last in shown.missing:
        screen.line(f"missing: records {first} to {last}; the state goes on from a snapshot after them")
    screen.line(f"{show.plural(shown.records, 'record')} folded, {state.status} in incarnation {state.incarnation}")
    if wrong:
        screen.line(screen.paint(f"the agent's own state differs in: {', '.join(wrong)}", show.RED))
    else:
        screen.line("the fold of the journal equals the agent's own state")
