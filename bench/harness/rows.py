"""Every row of the benchmark: what is measured, how often, and beside what.

Rows of one group are measured in turns, session by session and in alternating order, so that what changes on the
machine meanwhile changes them alike. A row's parameters say all that its numbers depend on; they are kept with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import overhead
from harness import kills
from harness.launchers import BARE, HOLDFAST, TORCHRUN, TORCHRUN_FORK, TORCHRUNS, Launcher
from harness.results import Results

CUDA = ("--device=cuda",)
CONTEXT_FLAGS = ("--spare-context",)
Measure = Callable[[int, Results], dict]


@dataclass(frozen=True)
class Row:
    name: str
    title: str
    kind: str  # kills, start, steady, memory, imports
    group: str
    sessions: int
    measure: Measure
    parameters: dict[str, Any] = field(default_factory=dict)
    needs_cuda: bool = False

    def described(self) -> dict[str, Any]:
        return {"name": self.name, "title": self.title, "kind": self.kind, "group": self.group}


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    sessions: int = 5  # launches of Holdfast and of the bare loop per row
    kills: int = 10  # in each of them
    singles: int = 8  # launches of a row in which every kill is a first failure
    fork_kills: int = 8  # of torchrun where it forks
    fresh_kills: int = 5  # of torchrun where every worker is a new interpreter
    starts: int = 5
    pairs: int = 5
    steps: tuple[int, int] = (50, 400)
    helps: int = 10
    ballast_gb: float = 4.0
    cap_seconds: float = 30.0
    first_after_seconds: float = 2.0


QUICK = Size(1, 2, 1, 2, 1, 1, 1, (10, 60), 3, 0.25, 30.0, 0.5)


def every_row(size: Size, seed: int) -> list[Row]:
    found: list[Row] = []
    for world in (2, 4):
        found += _kill_rows(size, seed, world)
    found += _ballast_rows(size, seed)
    found += _overhead_rows(size)
    found += _gpu_rows(size, seed)
    assert len({row.name for row in found}) == len(found)
    return found


def _kill_rows(size: Size, seed: int, world: int) -> list[Row]:
    many = kills.Plan(size.kills, size.cap_seconds, size.first_after_seconds)
    rows = [
        _kills(f"holdfast-{world}", HOLDFAST, world, many, seed, f"kills-{world}", size.sessions),
        _bare(f"bare-{world}", world, many, seed, f"kills-{world}", size.sessions),
    ]
    for launcher in TORCHRUNS:
        plan = replace(many, kills=size.fresh_kills if launcher.fresh else size.fork_kills)
        name = f"{launcher.name}-{world}"
        rows.append(_kills(name, launcher, world, plan, seed, name, 1))
    return rows


def _ballast_rows(size: Size, seed: int) -> list[Row]:
    """First failures without and with ballast: only the first incarnation touches it, so each kill is a new launch."""
    once = kills.Plan(1, size.cap_seconds, size.first_after_seconds, one_each=True)
    ballast = (f"--ballast-gb={size.ballast_gb}",)
    rows = []
    for launcher, sessions in ((HOLDFAST, size.singles), (TORCHRUN_FORK, max(1, size.singles // 2))):
        group = f"ballast-{launcher.name}"
        for suffix, words, arguments in (
            ("first", "first failures", ()),
            ("ballast", f"first failures, {size.ballast_gb:g} GB per worker", ballast),
        ):
            name = f"{launcher.name}-2-{suffix}"
            rows.append(_kills(name, launcher, 2, once, seed, group, sessions, arguments, words))
    return rows


def _gpu_rows(size: Size, seed: int) -> list[Row]:
    """Two ranks on one device over gloo: with spares that hold a context, where Holdfast has them, and without."""
    many = kills.Plan(size.kills, size.cap_seconds, size.first_after_seconds)
    context = replace(HOLDFAST, name="holdfast-context", title="Holdfast, spares hold a context", flags=CONTEXT_FLAGS)
    rows = [
        _kills("gpu-holdfast-context", context, 2, many, seed, "gpu", size.sessions, CUDA, "one GPU"),
        _kills("gpu-holdfast-fork", HOLDFAST, 2, many, seed, "gpu", size.sessions, CUDA, "one GPU"),
    ]
    for launcher in TORCHRUNS:
        plan = replace(many, kills=size.fresh_kills if launcher.fresh else size.fork_kills)
        name = f"gpu-{launcher.name}"
        rows.append(_kills(name, launcher, 2, plan, seed, name, 1, CUDA, "one GPU"))
    return [replace(row, needs_cuda=True) for row in rows]


def _overhead_rows(size: Size) -> list[Row]:
    first, last = size.steps
    rows = []
    for launcher in (HOLDFAST, TORCHRUN, TORCHRUN_FORK):
        measure = _ignoring(lambda launcher=launcher: overhead.start(launcher, 4))
        title = f"{launcher.title}: launch to first step, 4 workers"
        rows.append(Row(f"start-{launcher.name}", title, "start", "start", size.starts, measure, {"world": 4}))
    for launcher in (HOLDFAST, TORCHRUN):
        measure = _ignoring(lambda launcher=launcher: overhead.steady(launcher, 2, first, last))
        title = f"{launcher.title}: no fault, 2 workers"
        parameters = {"world": 2, "steps": [first, last]}
        rows.append(Row(f"steady-{launcher.name}", title, "steady", "steady", size.pairs, measure, parameters))
    for launcher, world in ((HOLDFAST, 2), (HOLDFAST, 4), (TORCHRUN, 2), (TORCHRUN, 4)):
        measure = _ignoring(lambda launcher=launcher, world=world: overhead.memory(launcher, world))
        name = f"memory-{launcher.name}-{world}"
        title = f"{launcher.title}: memory, {world} workers"
        rows.append(Row(name, title, "memory", name, 1, measure, {"world": world}))
    imports = _ignoring(lambda: overhead.imports(size.helps))
    return [*rows, Row("imports", "holdfast --help", "imports", "imports", 1, imports, {"count": size.helps})]


def _kills(
    name: str,
    launcher: Launcher,
    world: int,
    plan: kills.Plan,
    seed: int,
    group: str,
    sessions: int,
    arguments: tuple[str, ...] = (),
    words: str = "",
) -> Row:
    def measure(session: int, _results: Results) -> dict:
        return kills.series(launcher, world, plan, f"{seed}:{world}:{session}", arguments)

    parameters = {
        "launcher": launcher.name,
        "fresh": launcher.fresh,
        "world": world,
        "seed": seed,
        "sessions": sessions,
        "kills": plan.kills,
        "cap_seconds": plan.cap_seconds,
        "first_after_seconds": plan.first_after_seconds,
        "arguments": list(arguments),
    }
    title = f"{launcher.title}, {world} workers" + (f", {words}" if words else "")
    return Row(name, title, "kills", group, sessions, measure, parameters)


def _bare(name: str, world: int, plan: kills.Plan, seed: int, group: str, sessions: int) -> Row:
    """The bare loop on the rung that Holdfast was last seen to take."""
    row = _kills(name, BARE, world, plan, seed, group, sessions)

    def measure(session: int, results: Results) -> dict:
        rung = rung_of(results.data["rows"].get(f"holdfast-{world}", {}))
        launcher = replace(BARE, flags=(f"--rung={rung}",))
        return {**kills.series(launcher, world, plan, f"{seed}:{world}:{session}"), "rung": rung}

    return replace(row, measure=measure)


def rung_of(row: dict) -> str:
    """What most of Holdfast's replacements were: warm spares or forks on demand."""
    taken: Counter[str] = Counter()
    for session in row.get("sessions", {}).values():
        for kill in session.get("kills", ()):
            taken.update(kill.get("rung") or {})
    return "fork" if taken["forks"] > taken["spares"] else "spare"


def _ignoring(measure: Callable[[], dict]) -> Measure:
    return lambda _session, _results: measure()
