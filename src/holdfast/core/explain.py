"""An incident, put so that somebody who is woken by it understands it: what, where, how we know, what was done.

Purely computational. Nothing is concluded here that the verdict did not conclude; what is unknown is left out or called
unknown, never filled in. In text the script's own traceback comes last, where the eye is.
"""

from __future__ import annotations

import msgspec

from holdfast.core.goodput import first_sign
from holdfast.core.verdicts import first_cause, name_of
from holdfast.model.exits import Casualty
from holdfast.model.state import Blame, Incident, JobState, Remedy, Verdict

_BLAME = {
    Blame.INFRASTRUCTURE: "the infrastructure, not the script",
    Blame.USER: "the script",
    Blame.NODE: "this node",
}


class Gathered(msgspec.Struct, frozen=True):
    """What the agent kept of an incident beyond its state: too slow or too large for the way."""

    host: str = ""
    closed_wall: float | None = None
    tails: dict[str, list[str]] = {}
    kernel: list[str] = []


NOTHING = Gathered()


class PhaseTime(msgspec.Struct, frozen=True):
    name: str
    seconds: float | None  # None: not known apart from the next


class Where(msgspec.Struct, frozen=True):
    host: str
    rank: int | None
    incarnation: int
    pid: int | None


class Victim(msgspec.Struct, frozen=True):
    """One process that was lost."""

    rank: int
    incarnation: int
    pid: int | None
    how: str
    sign: str
    killed_by_us: bool


class Explanation(msgspec.Struct, frozen=True):
    job: str
    number: int
    outcome: str
    what: str
    where: Where
    exit: str
    evidence: tuple[str, ...]
    verdict: Verdict | None
    remedy: Remedy | None
    phases: tuple[PhaseTime, ...]
    seconds: float | None  # from the first sign to the first step of a whole world
    opened_wall: float | None
    attempts: int
    step_before: int | None
    resumed_from: int | None
    steps_lost: int | None
    spares_used: int
    files_changed: tuple[str, ...]
    casualties: tuple[Victim, ...]
    tail_rank: int | None
    tail: tuple[str, ...]
    next: tuple[str, ...]
    exception: str
    traceback: str


def explain(
    incident: Incident, state: JobState, job: str, gathered: Gathered = NOTHING, wall_offset: float | None = None
) -> Explanation:
    """`wall_offset`: seconds to add to the agent's clock to get the time of day."""
    shell_codes = state.terms.shell_codes
    judged = _judged(incident)
    cause = first_cause(judged, shell_codes=shell_codes) if judged else None
    verdict, remedy = incident.verdict, incident.remedy
    rank = verdict.suspect if verdict is not None and verdict.suspect is not None else cause.rank if cause else None
    raised = cause.raised if cause else None
    begun = first_sign(incident)
    return Explanation(
        job=job,
        number=incident.number,
        outcome=incident.outcome,
        what=verdict.sentence if verdict else "not judged yet: processes of the failed incarnation are still alive",
        where=Where(
            gathered.host, rank, cause.incarnation if cause else incident.incarnation, cause.pid if cause else None
        ),
        exit=how(cause) if cause else "",
        evidence=(*(verdict.evidence if verdict else ()), *gathered.kernel),
        verdict=verdict,
        remedy=remedy,
        phases=phases(incident),
        seconds=None if incident.recovered_at is None else incident.recovered_at - begun,
        opened_wall=None if wall_offset is None else begun + wall_offset,
        attempts=incident.attempts,
        step_before=incident.step_before,
        resumed_from=incident.resumed_from,
        steps_lost=incident.steps_lost,
        spares_used=remedy.spares if remedy else 0,
        files_changed=incident.files_changed,
        casualties=tuple(_victim_of(casualty) for casualty in incident.casualties),
        tail_rank=rank,
        tail=tuple(gathered.tails.get(str(rank), ())),
        next=_next(incident, job, rank, cause.incarnation if cause else incident.incarnation),
        exception=f"{raised.type}: {raised.message}" if raised else "",
        traceback=raised.traceback if raised else "",
    )


def _judged(incident: Incident) -> tuple[Casualty, ...]:
    """Those that the verdict is about: of the first incarnation that failed, or of the last when that ended the job."""
    last = max((casualty.incarnation for casualty in incident.casualties), default=0)
    judged = last if incident.outcome == "failed" else incident.incarnation
    return tuple(casualty for casualty in incident.casualties if casualty.incarnation == judged)


def _victim_of(casualty: Casualty) -> Victim:
    return Victim(
        rank=casualty.rank,
        incarnation=casualty.incarnation,
        pid=casualty.pid,
        how=how(casualty),
        sign=casualty.sign,
        killed_by_us=casualty.killed_by_us,
    )


def phases(incident: Incident) -> tuple[PhaseTime, ...]:
    """Each phase from the end of the one before it. With several attempts, `release` holds all but the last."""
    marks = (
        ("detect", incident.opened_at),
        ("release", incident.released_at),
        ("decide", incident.decided_at),
        ("muster", incident.assigned_at),
        ("regroup", incident.regrouped_at),
        ("restore", incident.restored_at),
        ("first step", incident.recovered_at),
    )
    found: list[PhaseTime] = []
    last = first_sign(incident)
    for name, at in marks:
        found.append(PhaseTime(name, None if at is None else max(0.0, at - last)))
        last = last if at is None else max(last, at)
    return tuple(found)


def how(casualty: Casualty) -> str:
    """How a process ended, in words."""
    if casualty.exit is not None and casualty.exit.signal is not None:
        return f"signal {casualty.exit.signal} ({name_of(casualty.exit.signal)})"
    if casualty.raised is not None:
        code = casualty.exit.code if casualty.exit is not None else None
        return f"raised {casualty.raised.type}" + (f", exit code {code}" if code is not None else "")
    if casualty.exit is not None and casualty.exit.code is not None:
        return f"exit code {casualty.exit.code}"
    return "nobody saw how"


def _next(incident: Incident, job: str, rank: int | None, incarnation: int) -> tuple[str, ...]:
    which = f" --rank {rank}" if rank is not None else ""
    found = [f"holdfast jobs logs {job}{which} --incarnation {incarnation} --tail 200"]
    found.append(f"holdfast goodput {job}")
    if incident.outcome == "failed":
        found.append(f"holdfast jobs show {job}")
    else:
        found.append(f"holdfast incidents ls {job}")
    return tuple(found)


# -- text


def text(told: Explanation) -> list[str]:
    """One screen."""
    lines = [f"incident {told.number} of {told.job}: {_ending(told)}", ""]
    lines += _field("what", told.what)
    lines += _field("where", _place(told.where))
    lines += _field("exit", told.exit)
    lines += _field("evidence", *told.evidence)
    if told.verdict is not None:
        blame = _BLAME[told.verdict.blame]
        lines += _field("verdict", f"{told.verdict.symptom}: {blame} (confidence {told.verdict.confidence})")
    if told.remedy is not None:
        tries = f", after {told.attempts} attempts" if told.attempts > 1 else ""
        lines += _field("remedy", told.remedy.sentence + tries)
    lines += _field("took", " · ".join(f"{p.name} {duration(p.seconds)}" for p in told.phases if p.seconds is not None))
    lines += _field("lost", _loss(told))
    changed = ", ".join(told.files_changed)
    lines += _field("files", f"changed since the last incarnation: {changed}" if changed else "unchanged")
    if len(told.casualties) > 1:
        lines += _field("casualties", *(_victim(victim) for victim in told.casualties))
    lines += _field("next", *told.next)
    if told.tail:
        lines += ["", f"last lines of rank {told.tail_rank}:", *(f"  {line}" for line in told.tail)]
    if told.traceback:
        lines += ["", f"traceback of rank {told.where.rank}:", *told.traceback.rstrip().splitlines()]
    return lines


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def _ending(told: Explanation) -> str:
    if told.outcome == "recovered" and told.seconds is not None:
        return f"recovered in {duration(told.seconds)}"
    return {"open": "still open"}.get(told.outcome, f"the job {told.outcome}")


def _place(where: Where) -> str:
    parts = [
        f"host {where.host}" if where.host else "",
        f"rank {where.rank}" if where.rank is not None else "",
        f"incarnation {where.incarnation}",
        f"pid {where.pid}" if where.pid is not None else "",
    ]
    return ", ".join(part for part in parts if part)


def _loss(told: Explanation) -> str:
    if told.outcome not in ("recovered", "open"):
        return ""
    if told.steps_lost is None:
        return "steps: unknown"
    steps = f"{told.steps_lost} step{'' if told.steps_lost == 1 else 's'}"
    return f"{steps} (was at {told.step_before}, resumed from {told.resumed_from})"


def _victim(victim: Victim) -> str:
    ours = ", ended by Holdfast" if victim.killed_by_us else ""
    return f"rank {victim.rank} of incarnation {victim.incarnation} (pid {victim.pid}): {victim.how}{ours}"


def _field(name: str, *values: str) -> list[str]:
    shown = [value for value in values if value]
    return [f"{name if not number else '':<10}  {value}" for number, value in enumerate(shown)]
