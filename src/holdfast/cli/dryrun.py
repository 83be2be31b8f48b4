"""`holdfast run --dry-run`: the plan as one table, or as one document.

It shows what `make_plan` decided and works out nothing itself except what each process will weigh.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from holdfast.agent import contract
from holdfast.cli.plan import SPARE_BYTES, Plan
from holdfast.model.ids import Incarnation, Rank
from holdfast.model.spec import Start

NURSERY_BYTES = 350 * 2**20
PORT_PLACEHOLDER = 0  # chosen when the store is opened
_FIXED = "fixed"


class Row(NamedTuple):
    what: str
    value: str
    note: str = ""


class Section(NamedTuple):
    title: str
    rows: tuple[Row, ...]


def print_plan(plan: Plan) -> None:
    if plan.json:
        print(msgspec.json.encode(document(plan)).decode())
        return
    parts = sections(plan)
    if sys.stdout.isatty():
        _print_rich(parts)
    else:
        print("\n".join(_plain(parts)))


def document(plan: Plan) -> dict[str, object]:
    rank_0, differing = _environment(plan)
    return {
        "schema": 1,
        "spec": plan.spec,
        "output": plan.output,
        "processes": [row._asdict() for row in _processes(plan)],
        "environment": plan.spec.environment | rank_0,
        "environment_differs_by_rank": list(differing),
        "sources": plan.sources,
        "notices": plan.notices,
    }


def sections(plan: Plan) -> tuple[Section, ...]:
    return tuple(
        section
        for section in (
            Section("job", _job(plan)),
            Section("processes", _processes(plan)),
            Section("environment", tuple(_environment_rows(plan))),
            Section("restarts", _restarts(plan)),
            Section("limits", tuple(_limits(plan))),
            Section("notices", tuple(Row("", notice) for notice in plan.notices)),
        )
        if section.rows
    )


def _job(plan: Plan) -> tuple[Row, ...]:
    spec = plan.spec
    return (
        Row("name", spec.name),
        Row("command", " ".join([spec.script, *spec.arguments]), spec.mode.value),
        Row("python", spec.python),
        Row("folder", spec.cwd),
        Row("start", spec.terms.start.value, f"imports {', '.join(spec.preload)}" if spec.preload else ""),
        Row("master", f"{spec.master_addr}:{spec.master_port or 'any free port'}"),
        Row("run id", spec.run_id),
    )


def _processes(plan: Plan) -> tuple[Row, ...]:
    terms = plan.spec.terms
    nursery = terms.start is Start.NURSERY
    weight = SPARE_BYTES if plan.spec.preload else 15 * 2**20
    rows = [
        Row("nursery", "1", _mib(NURSERY_BYTES if plan.spec.preload else 20 * 2**20) + ", shared by what it forks")
        if nursery
        else None,
        Row("keeper", "1", "serves the store") if terms.keeper else None,
        Row("workers", str(terms.world), f"ranks 0 to {terms.world - 1}" if terms.world > 1 else "rank 0"),
        Row(
            "spares",
            str(terms.spares),
            "; ".join(filter(None, [_mib(weight * terms.spares) if terms.spares else "", plan.sources["spares"]])),
        ),
    ]
    return tuple(row for row in rows if row is not None)


def _environment(plan: Plan) -> tuple[dict[str, str], tuple[str, ...]]:
    """Rank 0's own variables, and the names of those that are another value elsewhere."""
    spec = plan.spec

    def of(rank: int) -> dict[str, str]:
        return spec.environment | contract.worker_environment(
            spec,
            Rank(rank),
            Incarnation(1),
            0,
            spec.master_port or PORT_PLACEHOLDER,
            agent_store=spec.terms.keeper,
        )

    first, last = of(0), of(spec.terms.world - 1)
    return first, tuple(sorted(name for name in last if first.get(name) != last[name]))


def _environment_rows(plan: Plan) -> Iterable[Row]:
    rank_0, differing = _environment(plan)
    for name, value in sorted(rank_0.items()):
        if name == "MASTER_PORT" and value == str(PORT_PLACEHOLDER):
            yield Row(name, "any free port")
        else:
            yield Row(name, value, "differs by rank" if name in differing else "")
    for name in differing:
        if name not in rank_0:
            yield Row(name, "", "not for rank 0")


def _restarts(plan: Plan) -> tuple[Row, ...]:
    terms = plan.spec.terms
    if terms.policy == "stop":
        return (Row("policy", "stop", "the first failure ends the job"),)
    if terms.max_restarts is not None:
        return (Row("policy", terms.policy), Row("max restarts", str(terms.max_restarts), "a hard limit"))
    return (
        Row("policy", terms.policy),
        Row("budget", str(terms.budget), f"one earned back every {terms.refill_steps} steps"),
    )


def _limits(plan: Plan) -> Iterable[Row]:
    limits = plan.spec.terms.limits
    for field in msgspec.structs.fields(limits):
        value: float = getattr(limits, field.name)
        name = field.name.removesuffix("_seconds").replace("_", " ")
        yield Row(name, f"{value:g} s", plan.sources.get(field.name, _FIXED))


def _mib(size_bytes: int) -> str:
    return f"about {size_bytes / 2**20:.0f} MiB"


def _plain(parts: Iterable[Section]) -> Iterable[str]:
    everything = [row for section in parts for row in section.rows if row.what]
    what = max(len(row.what) for row in everything)
    value = min(48, max(len(row.value) for row in everything))
    for section in parts:
        yield section.title
        for row in section.rows:
            if row.what:
                yield f"  {row.what:<{what}}  {row.value:<{value}}  {row.note}".rstrip()
            else:
                yield f"  {row.value}"


def _print_rich(parts: Iterable[Section]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    for section in parts:
        table.add_row(Text(section.title, style="bold"))
        for row in section.rows:
            table.add_row(
                Text(f"  {row.what}"), Text(row.value, style="cyan" if row.what else ""), Text(row.note, "dim")
            )
    Console().print(table)
