"""`holdfast incidents`: what went wrong, how that is known, and what was done about it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import Any

from holdfast.adapters import catalogue
from holdfast.adapters.catalogue import Job
from holdfast.adapters.home import Home
from holdfast.cli import show
from holdfast.cli.show import Screen
from holdfast.core import explain
from holdfast.core.explain import Explanation, duration
from holdfast.model.errors import NotFound


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="ls | show | explain")
    listing = verbs.add_parser("ls", help="list incidents, of one job or of all")
    listing.add_argument("job", metavar="JOB", nargs="?", help="an id, its beginning, a name, or `last`")
    show.add_json(listing)
    showing = verbs.add_parser("show", help="every fact about one incident")
    showing.add_argument("job", metavar="JOB", help="an id, its beginning, a name, or `last`")
    explaining = verbs.add_parser("explain", help="one incident on one screen, the traceback last")
    explaining.add_argument("job", metavar="JOB", nargs="?", default="last", help="default: the newest job")
    for one in (showing, explaining):
        one.add_argument("number", metavar="N", type=_number, help="its number, or `last`")
        show.add_json(one)


def _number(text: str) -> int | None:
    return None if text == "last" else show.parse_count(text)


def main(namespace: argparse.Namespace) -> int:
    home = Home.find(os.environ)
    screen = Screen()
    if namespace.verb == "ls":
        return _ls(home, namespace.job, screen, as_json=namespace.json)
    told = tell(catalogue.find(home, namespace.job), namespace.number)
    if namespace.json:
        show.document(screen, incident=told)
    elif namespace.verb == "show":
        _show(told, screen)
    else:
        _explain(told, screen)
    return 0


def tell(job: Job, number: int | None) -> Explanation:
    """The explanation of one incident; None: of the newest."""
    known = job.head.state.incidents if job.head else {}
    wanted = max(map(int, known), default=0) if number is None else number
    found = job.incident(wanted)
    if found is None or job.head is None:
        have = f"It has {show.plural(len(known), 'incident')}." if known else "It has none."
        raise NotFound(f"no incident {number or ''}".rstrip(), where=job.id, why=have, remedy="holdfast incidents ls")
    incident, gathered = found
    return explain.explain(incident, job.head.state, job.id, gathered, job.wall_offset)


def _ls(home: Home, wanted: str | None, screen: Screen, *, as_json: bool) -> int:
    jobs = [catalogue.find(home, wanted)] if wanted else catalogue.jobs(home)
    told = list(_all(jobs))
    if as_json:
        show.document(screen, incidents=[_brief(one) for one in told])
    elif not told:
        screen.line("no incidents")
    else:
        columns = ("JOB", "N", "WHEN", "OUTCOME", "RANK", "TOOK", "STEPS LOST", "CAUSE")
        screen.table(columns, map(_row, told))
    return 0


def _all(jobs: list[Job]) -> Iterator[Explanation]:
    """Newest first."""
    for job in jobs:
        for number in sorted(map(int, job.head.state.incidents) if job.head else (), reverse=True):
            yield tell(job, number)


def _brief(told: Explanation) -> dict[str, Any]:
    return {
        "job": told.job,
        "number": told.number,
        "outcome": told.outcome,
        "cause": told.what,
        "symptom": told.verdict.symptom if told.verdict else None,
        "blame": told.verdict.blame if told.verdict else None,
        "rank": told.where.rank,
        "host": told.where.host,
        "incarnation": told.where.incarnation,
        "opened": told.opened_wall,
        "seconds": told.seconds,
        "steps_lost": told.steps_lost,
    }


def _row(told: Explanation) -> tuple[str, ...]:
    return (
        told.job,
        str(told.number),
        show.time_of_day(told.opened_wall),
        told.outcome,
        "-" if told.where.rank is None else str(told.where.rank),
        "-" if told.seconds is None else duration(told.seconds),
        "-" if told.steps_lost is None else str(told.steps_lost),
        told.what,
    )


def _explain(told: Explanation, screen: Screen) -> None:
    heading, *rest = explain.text(told)
    screen.line(screen.paint(heading, show.BOLD))
    for line in rest:
        screen.line(line)


def _show(told: Explanation, screen: Screen) -> None:
    verdict, remedy = told.verdict, told.remedy
    screen.fields(
        [
            ("incident", f"{told.number} of {told.job}"),
            ("outcome", told.outcome),
            ("opened", show.time_of_day(told.opened_wall)),
            ("incarnation", str(told.where.incarnation)),
            ("host", told.where.host),
            ("rank", "" if told.where.rank is None else f"{told.where.rank} (pid {told.where.pid})"),
            ("exit", told.exit),
            ("exception", told.exception),
            ("verdict", f"{verdict.symptom}, {verdict.sentence}" if verdict else "none yet"),
            ("blame", f"{verdict.blame.value}, confidence {verdict.confidence}" if verdict else ""),
            ("remedy", remedy.sentence if remedy else "none yet"),
            ("attempts", str(told.attempts)),
            ("spares used", str(told.spares_used)),
            ("steps lost", "unknown" if told.steps_lost is None else str(told.steps_lost)),
            ("files", ", ".join(told.files_changed) or "unchanged"),
        ]
    )
    screen.line()
    screen.table(("PHASE", "TOOK"), [(phase.name, duration(phase.seconds)) for phase in told.phases])
    screen.line()
    columns = ("RANK", "INC", "PID", "FIRST SIGN", "BY US", "HOW")
    screen.table(
        columns,
        [
            (str(v.rank), str(v.incarnation), str(v.pid), v.sign, "yes" if v.killed_by_us else "no", v.how)
            for v in told.casualties
        ],
    )
    _paragraph(screen, "evidence", told.evidence)
    _paragraph(screen, f"last lines of rank {told.tail_rank}", told.tail)
    _paragraph(screen, "next", told.next)
    _paragraph(screen, f"traceback of rank {told.where.rank}", told.traceback.rstrip().splitlines(), indent="")


def _paragraph(screen: Screen, heading: str, lines: Any, indent: str = "  ") -> None:
    if lines:
        screen.line()
        screen.line(screen.paint(heading, show.BOLD))
        for line in lines:
            screen.line(indent + line)
