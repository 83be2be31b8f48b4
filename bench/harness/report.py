"""The table: every number in it is computed here, from the results file. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from harness.stats import Spread, median, spread
from harness.targets import NOT_MEASURED, every_target, first_of, kills_of, pairs, seconds_of, sessions_of

BUSY = 0.1  # share of the machine that others took: above it a row is marked
HEADER = ("what", "unit", "n", "failed", "median", "p10", "p90", "remarks", "load", "others")


@dataclass(frozen=True)
class Line:
    what: str
    unit: str = ""
    found: Spread | None = None
    failed: int | None = None
    remarks: str = ""
    load: str = ""
    others: str = ""

    def cells(self) -> tuple[str, ...]:
        failed = "" if self.failed is None else str(self.failed)
        if self.found is None:
            numbers = ("0", failed, "none" if self.failed else NOT_MEASURED, "", "")
        else:
            found = self.found
            numbers = (str(found.count), failed, *(_number(v) for v in (found.median, found.p10, found.p90)))
        return (self.what, self.unit, *numbers, self.remarks, self.load, self.others)


def text(data: dict) -> str:
    return "\n".join([_circumstances(data), "", _plain(*_measured(data)), "", _plain(*_promised(data)), "", _NOTES])


def markdown(data: dict) -> str:
    parts = [_circumstances(data), _piped(*_measured(data)), _piped(*_promised(data)), _NOTES]
    return "\n\n".join(parts)


_NOTES = (
    "n: measurements that succeeded; failures are counted beside, never in a median. load: one-minute average when a\n"
    "session began; others: share of the machine's CPU time taken by others just before (median over sessions;\n"
    f"! above {BUSY:.0%}: do not draw conclusions)."
)


def lines(data: dict) -> list[Line]:
    """One or more for each planned row, in the order in which they were planned."""
    rows = data["rows"]
    found: list[Line] = []
    for planned in data["planned"]:
        row = rows.get(planned["name"])
        if row is None or not row["sessions"]:
            found.append(Line(planned["title"], remarks=data.get("why_not", {}).get(planned["name"], "")))
        else:
            found += _OF_KIND[planned["kind"]](planned, row)
        if planned["name"] == "steady-torchrun-default":
            found += _paired(rows)
    return found


def _kills(planned: dict, row: dict) -> Iterable[Line]:
    made = kills_of(row)
    failed = [kill for kill in made if kill["seconds"] is None]
    remarks = []
    first = first_of(row)
    if first and first.count < len(made):
        remarks.append(f"first {_number(first.median)} (worst {_number(first.high)} of {first.count})")
    for name, words in (("seen_ms", "known"), ("opened_ms", "incident")):
        if (value := spread(kill.get(name) for kill in made)) is not None:
            remarks.append(f"{words} {_number(value.median)} ms (p90 {_number(value.p90)})")
    taken: Counter[str] = Counter()
    for kill in made:
        taken.update(kill.get("rung") or {})
    taken.update(f"rung {session['rung']}" for session in sessions_of(row) if "rung" in session)
    remarks += [f"{count} {rung}" if not rung.startswith("rung") else rung for rung, count in taken.items() if count]
    remarks += [f"{count} x {why}" for why, count in Counter(kill.get("why", "") for kill in failed).items()]
    yield _line(planned["title"], "s", seconds_of(row), row, "; ".join(remarks), len(failed))


def _start(planned: dict, row: dict) -> Iterable[Line]:
    found = [session["seconds"] for session in sessions_of(row)]
    yield _line(planned["title"], "s", spread(found), row, "", found.count(None))


def _steady(planned: dict, row: dict) -> Iterable[Line]:
    sessions = sessions_of(row)
    failed = sum(session["seconds"] is None for session in sessions)
    first, last = row["parameters"]["steps"]
    for name, unit, words in (
        ("seconds", "s", f"steps {first} to {last}"),
        ("whole_seconds", "s", "whole job"),
        ("worker_cpu_us", "us", "a worker's CPU per step"),
        ("launcher_cpu_us", "us", "launcher's CPU per rank and step"),
    ):
        yield _line(f"{planned['title']}, {words}", unit, spread(s.get(name) for s in sessions), row, "", failed)


def _paired(rows: dict[str, dict]) -> Iterable[Line]:
    for words, unit, compare in (
        ("steps, Holdfast / torchrun", "x", lambda a, b: a["seconds"] / b["seconds"]),
        ("whole job, Holdfast / torchrun", "x", lambda a, b: a["whole_seconds"] / b["whole_seconds"]),
        ("a worker's CPU, Holdfast - torchrun", "us", lambda a, b: a["worker_cpu_us"] - b["worker_cpu_us"]),
        ("launcher's CPU, Holdfast - torchrun", "us", lambda a, b: a["launcher_cpu_us"] - b["launcher_cpu_us"]),
    ):
        yield Line(f"no fault, pairs: {words}", unit, spread(pairs(rows, compare)))


def _memory(planned: dict, row: dict) -> Iterable[Line]:
    processes = [p for session in sessions_of(row) for p in session["processes"] or ()]
    if not processes:
        yield _line(planned["title"], "MB", None, row, "the job did not start", 1)
    for role in dict.fromkeys(process["role"] for process in processes):
        those = [process for process in processes if process["role"] == role]
        titles = ", ".join(sorted({p["title"][:40] for p in those})) if role == "other" else ""
        for name in ("rss", "pss"):
            words = f"{planned['title']}: {role}, {name.upper()}"
            yield _line(words, "MB", spread(process[name] for process in those), row, titles)


def _imports(planned: dict, row: dict) -> Iterable[Line]:
    sessions = sessions_of(row)
    for name, words in (("help_ms", planned["title"]), ("python_ms", "a bare interpreter, for comparison")):
        taken = [ms for session in sessions for ms in session[name]]
        yield _line(words, "ms", spread(taken), row, "", taken.count(None))


_OF_KIND = {"kills": _kills, "start": _start, "steady": _steady, "memory": _memory, "imports": _imports}


def _line(what: str, unit: str, found: Spread | None, row: dict, remarks: str, failed: int | None = None) -> Line:
    sessions = sessions_of(row)
    load = median(session.get("load") for session in sessions)
    others = median(session.get("background") for session in sessions)
    mark = "" if others is None else f"{others:.0%}" + (" !" if others > BUSY else "")
    return Line(what, unit, found, failed, remarks, "" if load is None else f"{load:.1f}", mark)


def _measured(data: dict) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    return HEADER, [line.cells() for line in lines(data)]


def _promised(data: dict) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    targets = every_target(data["rows"])
    return ("target", "limit", "measured", "verdict"), [(t.what, t.limit, t.measured, t.verdict) for t in targets]


def _circumstances(data: dict) -> str:
    machine, code = data["machine"], data["code"]
    dates = [s["at"] for row in data["rows"].values() for s in sessions_of(row) if "at" in s]
    when = f"{min(dates)} to {max(dates)}" if dates else "nothing measured"
    return (
        f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_gb']} GB, Linux {machine['kernel']}, "
        f"Python {machine['python']}, torch {machine['torch']}, GPU: {machine['cuda'] or 'none'}.\n"
        f"Commit {code['commit'][:12]}, code {code['digest']}, {when}."
    )


def _number(value: float) -> str:
    size = abs(value)
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.3f}"


def _plain(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    rule = tuple("-" * width for width in widths)
    padded = ("  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in (header, rule, *rows))
    return "\n".join(padded)


def _piped(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    rule = tuple("---" for _ in header)
    escaped = ([cell.replace("|", "\\|") for cell in row] for row in (header, rule, *rows))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in escaped)
