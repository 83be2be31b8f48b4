"""The numbers that were promised, and whether the ones in the results file keep them. Pure.

A verdict needs the rows that it compares to be there: otherwise it is "not measured". Nothing here stops anything: a
benchmark reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from harness.stats import Spread, median, spread

PASS, FAIL, NOT_MEASURED, NOT_BINDING = "PASS", "FAIL", "not measured", "does not bind"
RECOVERY_SECONDS = {2: 0.16, 4: 0.22}
BARE_RATIO = 1.2
BEST_RATIO = 2.5
FRESH_RATIO = 25.0
FIRST_RATIO = 1.5
KILLS = 100
SEEN_MS, OPENED_MS = 1.0, 10.0
BALLAST_SECONDS = 0.03
GPU_SECONDS = {"context": 0.35, "fork": 1.0}
START_RATIO = 0.5
STEPS_RATIO, WHOLE_RATIO, CPU_US = 1.01, 1.0, 250.0
HELP_MS = 150.0


@dataclass(frozen=True)
class Target:
    what: str
    limit: str
    measured: str
    verdict: str


def kills_of(row: dict | None) -> list[dict]:
    return [kill for session in sessions_of(row) for kill in session.get("kills", ())]


def sessions_of(row: dict | None) -> list[dict]:
    found = (row or {}).get("sessions", {})
    return [found[number] for number in sorted(found, key=int)]


def seconds_of(row: dict | None) -> Spread | None:
    return spread(kill["seconds"] for kill in kills_of(row))


def first_of(row: dict | None) -> Spread | None:
    return spread(kill["seconds"] for kill in kills_of(row) if kill["first"])


def every_target(rows: dict[str, dict]) -> list[Target]:
    found: list[Target] = []
    for world in (2, 4):
        found += _recovery(rows, world)
    found += [_no_failures(rows), *_detection(rows), _ballast(rows), *_gpu(rows), *_start(rows), *_steady(rows)]
    return [*found, *_imports(rows), _memory(rows)]


def _recovery(rows: dict[str, dict], world: int) -> list[Target]:
    ours, floor = seconds_of(rows.get(f"holdfast-{world}")), seconds_of(rows.get(f"bare-{world}"))
    limit = RECOVERY_SECONDS[world]
    workers = f"{world} workers"
    absolute = _at_most(f"recovery, {workers}: median", ours and ours.median, limit, "s")
    if absolute.verdict == FAIL and floor and floor.median > limit:
        reached = f"{absolute.measured}; the bare loop reaches {floor.median:.3f} s here"
        absolute = Target(absolute.what, absolute.limit, reached, NOT_BINDING)
    first = first_of(rows.get(f"holdfast-{world}"))
    return [
        absolute,
        _at_most(f"recovery, {workers}: Holdfast / bare loop", _ratio(ours, floor), BARE_RATIO, "x"),
        _faster(f"recovery, {workers}: torchrun's best setting / Holdfast", rows, world, BEST_RATIO, fresh=False),
        _faster(f"recovery, {workers}: torchrun's best fresh / Holdfast", rows, world, FRESH_RATIO, fresh=True),
        _at_most(f"recovery, {workers}: first failure / median", _ratio(first, ours), FIRST_RATIO, "x"),
    ]


def _faster(what: str, rows: dict[str, dict], world: int, limit: float, *, fresh: bool) -> Target:
    """Against the setting with the lowest median of what it recovered, its failures left out, which favours it."""
    ours = seconds_of(rows.get(f"holdfast-{world}"))
    compared = {
        name: row
        for name, row in rows.items()
        if name.startswith("torchrun-")
        and name.endswith(f"-{world}")
        and kills_of(row)
        and (row["parameters"]["fresh"] or not fresh)
    }
    if ours is None or not compared:
        return Target(what, f">= {limit:g} x", "", NOT_MEASURED)
    medians = {name: seconds.median for name, row in compared.items() if (seconds := seconds_of(row))}
    if not medians:
        cap = min(row["parameters"]["cap_seconds"] for row in compared.values())
        ratio = cap / ours.median
        return Target(what, f">= {limit:g} x", f"> {ratio:.1f} x: none recovered", PASS if ratio >= limit else FAIL)
    best = min(medians, key=lambda name: medians[name])
    ratio = medians[best] / ours.median
    return Target(what, f">= {limit:g} x", f"{ratio:.1f} x ({best})", PASS if ratio >= limit else FAIL)


def _no_failures(rows: dict[str, dict]) -> Target:
    made = [kill for name, row in rows.items() if name.startswith("holdfast-") for kill in kills_of(row)]
    failed = sum(kill["seconds"] is None for kill in made)
    verdict = FAIL if failed else PASS if len(made) >= KILLS else NOT_MEASURED
    return Target("failed recoveries, all rows of Holdfast", f"0 in {KILLS} kills", f"{failed} in {len(made)}", verdict)


def _detection(rows: dict[str, dict]) -> Iterable[Target]:
    for words, names in (
        ("holding little", ("holdfast-2", "holdfast-4")),
        ("with ballast", ("holdfast-2-ballast",)),
    ):
        made = [kill for name in names for kill in kills_of(rows.get(name))]
        seen, opened = (median(kill.get(name) for kill in made) for name in ("seen_ms", "opened_ms"))
        yield _at_most(f"kill to known, {words}: median", seen, SEEN_MS, "ms")
        yield _at_most(f"kill to incident opened, {words}: median", opened, OPENED_MS, "ms")


def _ballast(rows: dict[str, dict]) -> Target:
    without, loaded = (seconds_of(rows.get(f"holdfast-2-{name}")) for name in ("first", "ballast"))
    more = loaded.median - without.median if loaded and without else None
    return _at_most("ballast: first failures with it - without it", more, BALLAST_SECONDS, "s")


def _gpu(rows: dict[str, dict]) -> Iterable[Target]:
    for rung, limit in GPU_SECONDS.items():
        found = seconds_of(rows.get(f"gpu-holdfast-{rung}"))
        yield _at_most(f"one GPU, 2 workers, {rung}: median", found and found.median, limit, "s")


def _start(rows: dict[str, dict]) -> Iterable[Target]:
    ours = _over_sessions(rows.get("start-holdfast"), "seconds")
    for name, words in (("torchrun-default", "torchrun"), ("torchrun-fork-unshared", "torchrun --run-path, fork")):
        theirs = _over_sessions(rows.get(f"start-{name}"), "seconds")
        yield _at_most(f"launch to first step, 4 workers: Holdfast / {words}", _ratio(ours, theirs), START_RATIO, "x")


def _steady(rows: dict[str, dict]) -> Iterable[Target]:
    steps = median(pairs(rows, lambda ours, theirs: ours["seconds"] / theirs["seconds"]))
    whole = median(pairs(rows, lambda ours, theirs: ours["whole_seconds"] / theirs["whole_seconds"]))
    cpu = median(pairs(rows, lambda ours, theirs: _cpu(ours) - _cpu(theirs)))
    yield _at_most("no fault: steps, Holdfast / torchrun, median of pairs", steps, STEPS_RATIO, "x")
    yield _at_most("no fault: whole job, Holdfast / torchrun, median of pairs", whole, WHOLE_RATIO, "x")
    yield _at_most("no fault: added CPU per rank and step, launcher included", cpu, CPU_US, "us")


def pairs(rows: dict[str, dict], compare: Callable[[dict, dict], float]) -> list[float]:
    """Session by session, Holdfast against torchrun."""
    ours, theirs = (sessions_of(rows.get(f"steady-{name}")) for name in ("holdfast", "torchrun-default"))
    both = zip(ours, theirs, strict=False)
    return [compare(a, b) for a, b in both if a["seconds"] is not None and b["seconds"] is not None]


def _cpu(session: dict) -> float:
    return session["worker_cpu_us"] + session["launcher_cpu_us"]


def _imports(rows: dict[str, dict]) -> Iterable[Target]:
    found = sessions_of(rows.get("imports"))
    yield _at_most("holdfast --help: median", median(ms for s in found for ms in s["help_ms"]), HELP_MS, "ms")
    what, limit = "import holdfast", "neither torch nor the server"
    if not found:
        yield Target(what, limit, "", NOT_MEASURED)
    else:
        light = all(session["light"] for session in found)
        yield Target(what, limit, "neither" if light else found[0]["why"], PASS if light else FAIL)


def _memory(rows: dict[str, dict]) -> Target:
    found = [s for name, row in rows.items() if name.startswith("memory-holdfast") for s in sessions_of(row)]
    reported = bool(found) and all(session["processes"] for session in found)
    what, limit = "memory of nursery and spares", "reported"
    return Target(what, limit, "yes", PASS) if reported else Target(what, limit, "", NOT_MEASURED)


def _over_sessions(row: dict | None, name: str) -> Spread | None:
    return spread(session.get(name) for session in sessions_of(row))


def _ratio(ours: Spread | None, theirs: Spread | None) -> float | None:
    return ours.median / theirs.median if ours and theirs else None


def _at_most(what: str, value: float | None, limit: float, unit: str) -> Target:
    if value is None:
        return Target(what, f"<= {limit:g} {unit}", "", NOT_MEASURED)
    return Target(what, f"<= {limit:g} {unit}", f"{value:.3g} {unit}", PASS if value <= limit else FAIL)
