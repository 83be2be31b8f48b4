"""The verdict as tables for a person and as one document for a program."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.core.explain import duration
from holdfast.core.goodput import Goodput
from holdfast.demo.compare import CAP_SECONDS, Comparison
from holdfast.demo.conditions import Conditions
from holdfast.demo.plan import Fault
from holdfast.demo.verdict import Facts, Row, Verdict

IDENTICAL_MEANS = (
    "Equal bit for bit holds for: the same world size, the same torch build on the same machine, deterministic "
    "operators, one thread per rank, and DDP warmed before the state is restored. With another number of ranks, "
    "another processor or other library choices it does not."
)
_COLUMNS_MEAN = (
    "detected: from the kill to Holdfast's first sign of it. back: from the kill to the last rank's first step. "
    "identical: rank-steps made again that gave the same loss."
)
_HOUR = 3600.0


def plan(console: Console, faults: tuple[Fault, ...], conditions: Conditions) -> None:
    _print(console, Text(f"The plan, from seed {conditions.seed} (SIGKILL each time; --seed repeats it):"))
    for fault in faults:
        _print(console, Text(f"  {fault.number}  at step {fault.step:>4}  kill {fault.target}"))
    _print(console, Text())


def verdict(console: Console, judged: Verdict, calm: Facts, hurt: Facts, conditions: Conditions) -> None:
    _print(console, Text())
    _print(console, _faults(judged.rows))
    _print(console, Text(_COLUMNS_MEAN, "dim"))
    _print(console, Text())
    _print(console, _goodput(calm.goodput, hurt.goodput))
    for line in _honest(judged.rows, calm, hurt):
        _print(console, Text(line, "dim"))
    _print(console, Text())
    _print(console, _claims(judged))
    _print(console, Text(IDENTICAL_MEANS, "dim"))
    _print(console, Text(f"Measured in this run, on this machine: {conditions.sentence}.", "dim"))
    if judged.holds:
        _print(console, Text(f"\nAll {len(judged.claims)} claims hold.", "bold green"))
    else:
        failed = sum(not claim.holds for claim in judged.claims)
        _print(console, Text(f"\n{failed} of {len(judged.claims)} claims failed.", "bold red"))


def comparison(console: Console, compared: list[Comparison], rows: list[Row], weights: str) -> None:
    table = _table("the same kills", "holdfast", *(f"torchrun, {one.setting}" for one in compared))
    ours = {row.made.fault.number: row.made.back_seconds for row in rows}
    faults = [row.made.fault for row in rows if row.made.fault.hurts_workers]
    for fault in faults:
        cells = [_seconds(ours.get(fault.number))]
        for one in compared:
            outcome = next(o for o in one.outcomes if o.fault.number == fault.number)
            cells.append(_seconds(outcome.seconds) if outcome.seconds is not None else Text(outcome.why, "red"))
        table.add_row(f"{fault.target} at step {fault.step}", *cells)
    back = [_counted([ours.get(fault.number) for fault in faults])]
    back += [_counted([outcome.seconds for outcome in one.outcomes]) for one in compared]
    table.add_row("survived", *back)
    table.add_row("load when it began", "", *(f"{one.load:.1f}" for one in compared))
    table.add_row("launches", "1", *(str(one.launches) for one in compared))
    same = ["equal to A" if one.weights_sha256 == weights else _unequal(one) for one in compared]
    table.add_row("final weights", "equal to A" if weights else "unknown", *same)
    _print(console, Text())
    _print(console, table)
    note = (
        f"From kill to the last rank's first step; a kill not survived within {CAP_SECONDS:.0f} s counts as failed, "
        "and torchrun is then started anew by hand. This is torchrun on this machine, with this script, in this run."
    )
    _print(console, Text(note, "dim"))


def document(
    judged: Verdict, calm: Facts, hurt: Facts, conditions: Conditions, compared: list[Comparison]
) -> dict[str, Any]:
    return {
        "holds": judged.holds,
        "conditions": conditions,
        "claims": judged.claims,
        "faults": [_row_data(row) for row in judged.rows],
        "runs": {name: _run_data(facts) for name, facts in (("A", calm), ("B", hurt))},
        "identical_means": IDENTICAL_MEANS,
        "torchrun": compared,
    }


# -- tables


def _faults(rows: list[Row]) -> Table:
    table = _table("kill", "step", "seen as", "detected", "back", "replayed", "identical")
    for row in rows:
        made, seen = row.made, row.seen
        table.add_row(
            made.fault.target,
            str(made.fault.step),
            _seen_as(row),
            duration_fine(seen.detect_seconds),
            _back(row),
            "" if row.replayed_steps is None else f"{row.replayed_steps} steps",
            _identical(row),
        )
    return table


def _back(row: Row) -> Text:
    if not row.made.fault.hurts_workers:
        return Text("not needed", "dim")
    return _seconds(row.made.back_seconds)


def _seen_as(row: Row) -> Text:
    text = Text(row.seen.as_what, "" if row.seen.right else "red")
    if row.seen.right and not row.made.fault.hurts_workers:
        replaced = row.seen.replaced_seconds
        text.append(
            "; another " + (f"in {replaced:.1f} s" if replaced is not None else "not yet warm at the end"), "dim"
        )
    return text


def _identical(row: Row) -> Text:
    if not row.made.fault.hurts_workers:
        return Text("")
    equal = row.replays == row.replays_equal
    return Text(f"{'✓' if equal else '✗'} {row.replays_equal}/{row.replays}", "green" if equal else "bold red")


def _claims(judged: Verdict) -> Table:
    table = _table("", "claim", "computed from the files of this run")
    for claim in judged.claims:
        mark = Text("✓", "green") if claim.holds else Text("✗", "bold red")
        style = "" if claim.holds else "bold red"
        table.add_row(mark, Text(claim.name, style), Text(claim.detail, style))
    return table


def _goodput(calm: Goodput | None, hurt: Goodput | None) -> Table:
    table = _table("where the time went", "A", "", "B", "")
    buckets = list((hurt or calm or Goodput(0, {}, None, None, None, 0)).buckets)
    for name in buckets:
        parts = [one.buckets.get(name, 0.0) if one is not None else 0.0 for one in (calm, hurt)]
        if any(part > 0 for part in parts):
            cells = [cell for part, one in zip(parts, (calm, hurt), strict=True) for cell in _share(part, one)]
            table.add_row(name.replace("_", " "), *cells)
    sums = [cell for one in (calm, hurt) for cell in _share(sum(one.buckets.values()) if one else 0.0, one)]
    table.add_row("sum", *sums)
    walls = [cell for one in (calm, hurt) for cell in _share(one.wall_seconds if one else 0.0, one)]
    table.add_row("wall time", *walls, style="dim")
    return table


def _share(seconds: float, one: Goodput | None) -> tuple[str, str]:
    if one is None:
        return "unknown", ""
    share = 100 * seconds / one.wall_seconds if one.wall_seconds else 0.0
    return f"{seconds:.2f} s", f"{share:.1f} %"


def _honest(rows: list[Row], calm: Facts, hurt: Facts) -> list[str]:
    """What the figures do not mean."""
    lines = []
    goodput = hurt.goodput
    if goodput is not None and goodput.goodput is not None:
        lines.append(
            f"Goodput of B: {100 * goodput.goodput:.1f} %. That is low because it is a short run with many kills, and "
            "start-up and replayed steps count as lost."
        )
    cost = _cost_seconds(rows, hurt)
    if cost is not None:
        lines.append(
            f"Arithmetic, no measurement: one such kill costs {cost:.2f} s (down and replaying), which is "
            f"{100 * cost / _HOUR:.3f} % at one per hour and {100 * cost / _HOUR / 24:.4f} % at one per day."
        )
    lines.append(
        f"By our own clock A took {calm.seconds:.2f} s and B {hurt.seconds:.2f} s: that includes the launcher's own "
        "start and end, which no journal can see."
    )
    return lines


def _cost_seconds(rows: list[Row], hurt: Facts) -> float | None:
    kills = [row for row in rows if row.made.fault.hurts_workers]
    goodput = hurt.goodput
    if not kills or goodput is None:
        return None
    kept = ("productive", "startup", "teardown", "drain")
    return sum(seconds for name, seconds in goodput.buckets.items() if name not in kept) / len(kills)


# -- words


def duration_fine(seconds: float | None) -> str:
    """Detection is quicker than a millisecond, and nothing that is measured should read as zero."""
    if seconds is None:
        return "unknown"
    return f"{seconds * 1000:.2f} ms" if abs(seconds) < 0.1 else duration(seconds)


def _seconds(seconds: float | None) -> Text:
    return Text("not back", "bold red") if seconds is None else Text(f"{seconds:.2f} s")


def _counted(seconds: list[float | None]) -> Text:
    survived = sum(one is not None for one in seconds)
    return Text(f"{survived} of {len(seconds)}", "green" if survived == len(seconds) else "bold red")


def _unequal(one: Comparison) -> str:
    return "not equal to A" if one.weights_sha256 else "never finished"


def _row_data(row: Row) -> dict[str, Any]:
    made, seen = row.made, row.seen
    return {
        "number": made.fault.number,
        "kind": made.fault.kind,
        "ranks": made.fault.ranks,
        "step": made.fault.step,
        "signal": "SIGKILL",
        "pids": [victim.pid for victim in made.victims],
        "at_monotonic_ns": made.at_ns,
        "seen_as": seen.as_what,
        "incident": seen.incident,
        "detect_seconds": seen.detect_seconds,
        "back_seconds": made.back_seconds,
        "replaced_seconds": seen.replaced_seconds,
        "replayed_steps": row.replayed_steps,
        "replays": row.replays,
        "replays_equal": row.replays_equal,
        "holds": row.holds,
    }


def _run_data(facts: Facts) -> dict[str, Any]:
    return {
        "job": facts.job_id,
        "exit_code": facts.exit_code,
        "seconds": facts.seconds,
        "result": facts.result,
        "goodput": facts.goodput,
        "left_over": facts.left_over,
    }


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _print(console: Console, what: Text | Table) -> None:
    console.print(what, highlight=False, markup=False)
