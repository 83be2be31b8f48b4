"""One fault after another against a job that allows it: who is hit, and how.

Chance enters through a seed alone: the ranks that a seed chooses are the same every time, whatever the job does in
between. When the rank that is due is dead or not born yet, the drill waits for it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from holdfast.adapters.injection import memory, signals, tracing, victims
from holdfast.adapters.injection.refusal import Gone, Refused
from holdfast.adapters.injection.victims import Kind, Victim
from holdfast.adapters.sqlite_journal import Head, read_head
from holdfast.model.state import Phase

FAULTS = (*signals.FAULTS, "oom", "exit")
WAIT_SECONDS = 30.0
_LOOK_SECONDS = 0.01


class Target(msgspec.Struct, frozen=True):
    """Who is meant. Without ranks: one chosen by the seed, or all."""

    kind: Kind = Kind.WORKER
    ranks: tuple[int, ...] = ()
    everyone: bool = False


class Drill(msgspec.Struct, frozen=True):
    fault: str
    target: Target
    seed: int
    count: int = 1
    every_seconds: float = 1.0
    code: int = 1


class Injection(msgspec.Struct, frozen=True):
    """One fault as it was made."""

    fault: str
    at_ns: int  # CLOCK_MONOTONIC
    victims: tuple[Victim, ...]
    note: str = ""
    effective: bool = True


def check(head: Head) -> None:
    """A job that was not started to be hurt is not hurt."""
    spec = head.meta.spec
    if not spec.allow_drills:
        raise Refused(
            f"{spec.name} ({spec.job_id}) does not allow drills",
            why="it was started without --allow-drills",
            remedy="Start a job that may be hurt: holdfast run --allow-drills ...",
        )
    if head.state.phase is Phase.OVER:
        raise Refused(f"{spec.name} ({spec.job_id}) is over: {head.state.status.value.lower()}")
    victims.agent_of(head.meta)


def ranks_of(drill: Drill, world: int) -> Iterator[tuple[int, ...]]:
    """The ranks of each fault in turn; empty where ranks are not what is chosen."""
    dice = random.Random(drill.seed)
    for _ in range(drill.count):
        if drill.target.kind is not Kind.WORKER:
            yield ()
        elif drill.target.everyone:
            yield tuple(range(world))
        else:
            yield drill.target.ranks or (dice.randrange(world),)


def perform(drill: Drill, journal: Path, rest: Callable[[float], None] = time.sleep) -> Iterator[Injection]:
    """Make the faults. The journal is read anew for each, since a job's processes change."""
    head = read_head(journal)
    check(head)
    world = head.meta.spec.terms.world
    for wrong in (rank for rank in drill.target.ranks if rank >= world):
        raise Refused(f"there is no rank {wrong}", why=f"the job has ranks 0 to {world - 1}")
    for number, ranks in enumerate(ranks_of(drill, world)):
        if number:
            rest(drill.every_seconds)
        yield _when_there(drill, journal, ranks)


def _when_there(drill: Drill, journal: Path, ranks: tuple[int, ...]) -> Injection:
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        head = read_head(journal)
        check(head)
        chosen = find(head, drill.target.kind, ranks)
        if chosen:
            try:
                return strike(drill.fault, chosen, code=drill.code)
            except Gone:
                pass  # it was quicker: whoever takes its place is next
        time.sleep(_LOOK_SECONDS)
    wanted = ", ".join(f"rank {rank}" for rank in ranks) or f"a {drill.target.kind.value}"
    raise Refused(f"{wanted} was not there for {WAIT_SECONDS:.0f} s", where=str(head.meta.spec.job_id))


def find(head: Head, kind: Kind, ranks: Sequence[int] = ()) -> list[Victim]:
    """The processes meant, or nothing if one of them is not there."""
    if kind is Kind.WORKER:
        alive = victims.workers(head)
        return [alive[rank] for rank in ranks] if all(rank in alive for rank in ranks) else []
    if kind is Kind.SPARE:
        return victims.spares(head)[:1]
    one = victims.nursery(head) if kind is Kind.NURSERY else victims.store(head)
    return [one] if one is not None else []


def strike(fault: str, chosen: Sequence[Victim], *, code: int = 1) -> Injection:
    """Hurt exactly these, now. `Gone` if one of them is not there any more."""
    if fault in signals.FAULTS:
        return Injection(fault, signals.send(chosen, signals.FAULTS[fault]), tuple(chosen))
    if fault == "exit":
        at = [_exit(victim, code) for victim in chosen]
        return Injection(fault, at[0], tuple(chosen), f"exit_group({code}) through ptrace")
    outcomes = [memory.exhaust(victim) for victim in chosen]
    effective = all(outcome.ended for outcome in outcomes)
    note = "memory ran out by itself"
    if any(outcome.nudged for outcome in outcomes):
        note = "made to ask for memory through ptrace"
    if not effective:
        note = "it asked for no memory and lives; it is back in its own cgroup"
    return Injection(fault, outcomes[0].at_ns, tuple(chosen), note, effective)


def _exit(victim: Victim, code: int) -> int:
    with victims.held([victim]) as (handle,):
        at = tracing.make_exit(victim.pid, code)
        if not signals.ended(handle, WAIT_SECONDS):
            raise Refused(f"{victim.name} (pid {victim.pid}) was told to exit and has not")
        return at
