"""`holdfast jobs`: what runs and ran here, and what it printed."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from typing import Any

from holdfast.adapters import catalogue
from holdfast.adapters.catalogue import Job
from holdfast.adapters.home import Home
from holdfast.adapters.joblogs import Line, LogLevel, LogReader, Wanted
from holdfast.cli import show
from holdfast.cli.lines import Folded, Painter, fold
from holdfast.cli.show import Screen
from holdfast.core.explain import duration
from holdfast.core.goodput import first_sign
from holdfast.model.state import Incident, JobState


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="ls | show | logs")
    listing = verbs.add_parser("ls", help="list jobs, newest first")
    show.add_json(listing)
    showing = verbs.add_parser("show", help="everything about one job")
    _add_job(showing)
    show.add_json(showing)
    _add_logs(verbs.add_parser("logs", help="what the workers printed, merged by time"))


def _add_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="an id, its beginning, a name, or `last`")


def _add_logs(parser: argparse.ArgumentParser) -> None:
    _add_job(parser)
    parser.add_argument("--rank", type=show.parse_ranks, metavar="0,3-5", help="only these ranks")
    parser.add_argument("--incarnation", type=show.parse_count, metavar="N", help="only this incarnation")
    parser.add_argument("--stream", choices=("out", "err"), help="only this stream")
    parser.add_argument("--grep", type=show.parse_pattern, metavar="REGEX", help="only lines that match")
    parser.add_argument("--level", choices=("info", "warning", "error"), default="info", help="this level and above")
    parser.add_argument("--since", metavar="TIME", help="10m (ago), an ISO time, or seconds since 1970")
    parser.add_argument("--until", metavar="TIME", help="likewise")
    parser.add_argument("--tail", type=show.parse_count, metavar="N", help="only the last N lines")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the job is over")
    parser.add_argument("-t", "--timestamps", action="store_true", help="begin each line with its time")
    show.add_json(parser, "one JSON document, or one line each when following")


def main(namespace: argparse.Namespace) -> int:
    home = Home.find(os.environ)
    screen = Screen()
    if namespace.verb == "ls":
        return _ls(home, screen, as_json=namespace.json)
    job = catalogue.find(home, namespace.job)
    if namespace.verb == "show":
        return _show(job, screen, as_json=namespace.json)
    return _logs(job, screen, namespace)


# -- ls


def _ls(home: Home, screen: Screen, *, as_json: bool) -> int:
    rows = [summary(job) for job in catalogue.jobs(home)]
    if as_json:
        show.document(screen, home=str(home.root), jobs=rows)
    elif not rows:
        screen.line(f"no jobs in {home.root} yet; start one: holdfast run SCRIPT")
    else:
        now = time.time()
        columns = ("ID", "NAME", "STATUS", "INC", "RESTARTS", "STEP", "AGE", "LAST CAUSE")
        screen.table(columns, [_row(row, now) for row in rows])
    return 0


def summary(job: Job) -> dict[str, Any]:
    """One job in a few facts."""
    state = job.head.state if job.head else JobState()
    meta = job.head.meta if job.head else None
    return {
        "id": job.id,
        "name": job.name,
        "status": job.status.value,
        "alive": job.alive,
        "incarnation": int(state.incarnation),
        "restarts": state.budget.restarts,
        "step": state.best_step,
        "incidents": len(state.incidents),
        "last_cause": last_cause(job),
        "exit_code": state.exit_code,
        "created": meta.created if meta else None,
        "updated": job.head.wall if job.head and job.head.seq else None,
        "host": meta.host if meta else None,
        "pid": meta.pid if meta else None,
        "trouble": job.trouble,
    }


def last_cause(job: Job) -> str:
    if job.head is None:
        return job.trouble
    incidents = job.head.state.incidents
    newest = max(incidents.values(), key=lambda incident: incident.number, default=None)
    if newest is not None and newest.verdict is not None:
        return newest.verdict.sentence
    return job.head.state.reason if job.head.state.exit_code else ""


def _row(row: dict[str, Any], now: float) -> tuple[str, ...]:
    step = row["step"]
    return (
        row["id"],
        row["name"] or "?",
        row["status"] if row["alive"] is not None or row["exit_code"] is not None else f"{row['status']}?",
        str(row["incarnation"] or "-"),
        str(row["restarts"]),
        "-" if step is None else str(step),
        show.age(now - row["created"]) if row["created"] else "-",
        row["last_cause"],
    )


# -- show


def _show(job: Job, screen: Screen, *, as_json: bool) -> int:
    if as_json:
        show.document(screen, job=_details(job))
        return 0
    facts = _details(job)
    incidents: dict[str, Incident] = job.head.state.incidents if job.head else {}
    screen.fields(
        [
            ("job", f"{job.id}  {job.name}"),
            ("status", facts["status"]),
            ("reason", facts["reason"]),
            ("exit code", "" if facts["exit_code"] is None else str(facts["exit_code"])),
            ("command", facts["command"]),
            ("folder", facts["cwd"]),
            ("agent", f"pid {facts['pid']} on {facts['host']}" if facts["host"] else ""),
            ("started", show.time_of_day(facts["created"])),
            ("newest", show.time_of_day(facts["updated"])),
            ("world", str(facts["world"] or "")),
            ("incarnation", f"{facts['incarnation']} ({show.plural(facts['restarts'], 'restart')})"),
            ("step", "unknown" if facts["step"] is None else str(facts["step"])),
            ("last cause", facts["last_cause"]),
            ("records", facts["records"]),
            ("trouble", facts["trouble"]),
        ]
    )
    if job.alive is None:
        screen.line("whether its agent lives cannot be told from this machine")
    if incidents:
        screen.line()
        columns = ("INCIDENT", "OUTCOME", "INC", "TOOK", "STEPS LOST", "CAUSE")
        screen.table(columns, [_incident_row(incidents[key]) for key in sorted(incidents, key=int)])
    screen.line()
    for command in (f"jobs logs {job.id}", f"incidents explain {job.id} last", f"goodput {job.id}"):
        if incidents or not command.startswith("incidents"):
            screen.line(screen.paint(f"  holdfast {command}", show.DIM))
    return 0


def _details(job: Job) -> dict[str, Any]:
    details = summary(job) | {"records": str(job.folder.path), "reason": "", "command": "", "cwd": "", "world": 0}
    if job.head is None:
        return details
    spec, state = job.head.meta.spec, job.head.state
    return details | {
        "reason": state.reason,
        "command": shlex.join([spec.script, *spec.arguments]),
        "cwd": spec.cwd,
        "mode": spec.mode.value,
        "python": spec.python,
        "run_id": spec.run_id,
        "world": spec.terms.world,
        "spares": spec.terms.spares,
        "policy": spec.terms.policy,
        "environment_names": sorted(spec.environment),  # values may be secret
        "version": job.head.meta.version,
        "phase": state.phase.value,
        "budget": state.budget,
        "processes": list(state.processes.values()),
        "open_incident": state.open_incident,
    }


def _incident_row(incident: Incident) -> tuple[str, ...]:
    took = None if incident.recovered_at is None else incident.recovered_at - first_sign(incident)
    lost = incident.steps_lost
    return (
        str(incident.number),
        incident.outcome,
        str(incident.incarnation),
        "-" if took is None else duration(took),
        "-" if lost is None else str(lost),
        incident.verdict.sentence if incident.verdict else "not judged yet",
    )


# -- logs


def _logs(job: Job, screen: Screen, namespace: argparse.Namespace) -> int:
    now = time.time()
    reader = LogReader(
        job.folder.logs,
        Wanted(
            ranks=namespace.rank,
            incarnation=namespace.incarnation,
            stream={"out": "o", "err": "e", None: None}[namespace.stream],
            grep=namespace.grep,
            level=LogLevel[namespace.level.upper()],
            since=show.moment(namespace.since, now),
            until=show.moment(namespace.until, now),
        ),
    )
    try:
        if namespace.follow:
            return _follow(job, reader, screen, namespace)
        lines = reader.lines(namespace.tail)
        if namespace.json:
            show.list_document(screen, "lines", map(as_data, lines), job=job.id)
        else:
            _paint(screen, lines, namespace)
    finally:
        reader.close()
    return 0


def _follow(job: Job, reader: LogReader, screen: Screen, namespace: argparse.Namespace) -> int:
    lines = reader.follow(lambda: catalogue.look(job.folder).over, namespace.tail)
    if not namespace.json:
        _paint(screen, lines, namespace)
        return 0
    for line in lines:
        if line is not None:
            show.row(screen, as_data(line))
    return 0


def _paint(screen: Screen, lines: Any, namespace: argparse.Namespace) -> None:
    painter = Painter(screen, timestamps=namespace.timestamps)
    for folded in fold(lines):
        if isinstance(folded, Folded):
            screen.line(painter.line(folded))
        else:
            screen.stream.flush()
    if screen.terminal and not painter.painted:
        print("no such lines", file=sys.stderr)


def as_data(line: Line) -> dict[str, Any]:
    return {
        "time": line.wall,
        "rank": line.rank,
        "incarnation": line.incarnation,
        "stream": "out" if line.stream == "o" else "err",
        "level": line.level.name.lower(),
        "text": line.text,
    }
