"""From the first symptom to a whole world again: release, judge, charge the budget, muster.

One incident takes in every death until all ranks have stepped: simultaneous ones, and those during start-up, restore
or an earlier attempt at recovery. Judgement waits until the failed incarnation is dead, because only then is every
exit known, and first causes are told from their consequences.
"""

from __future__ import annotations

import signal as signals

from msgspec.structs import replace

from holdfast.core import budgets, crew, verdicts
from holdfast.core.turn import Turn
from holdfast.model import actions
from holdfast.model.actions import Level
from holdfast.model.exits import Casualty
from holdfast.model.ids import Incarnation, ProcessId, Rank, Step
from holdfast.model.state import Blame, Incident, Phase, Process, Remedy, Stage, Status, Verdict

_LIVING = (Stage.STARTING, Stage.WARM, Stage.RUNNING, Stage.FINISHED, Stage.RAISED)


# -- symptoms


def worker_failed(turn: Turn, casualty: Casualty, listening: tuple[ProcessId, ...], step: Step | None) -> None:
    """A worker of the current incarnation is lost, or on its way out with an error."""
    if turn.ending:
        return
    fresh = turn.incident is None
    if fresh:
        _open_incident(turn, step)
    _add_casualty(turn, casualty)
    if turn.state.phase in (Phase.TRAINING, Phase.MUSTERING, Phase.RESTING):
        turn.because(f"rank {casualty.rank} of incarnation {turn.state.incarnation} failed")
        if not fresh:
            turn.note(attempts=(turn.incident or _missing()).attempts + 1)
        _release(turn, listening)


def _open_incident(turn: Turn, step: Step | None) -> None:
    number = len(turn.state.incidents) + 1
    incident = Incident(
        number=number,
        incarnation=turn.state.incarnation,
        opened_at=turn.at,
        step_before=step if step is not None else turn.state.best_step,
    )
    turn.set(incidents={**turn.state.incidents, str(number): incident}, open_incident=number, status=Status.RECOVERING)


def _add_casualty(turn: Turn, casualty: Casualty) -> None:
    """Merge with what is known of the same process: an exception comes before the exit it leads to."""
    incident = turn.incident
    if incident is None:
        return
    known = {c.id: c for c in incident.casualties}
    if (before := known.get(casualty.id)) is not None:
        ended = casualty.exit if casualty.exit is not None and casualty.exit.signal is None else None
        casualty = replace(
            before,
            exit=before.exit or (ended if before.raised else casualty.exit),
            raised=before.raised or casualty.raised,
            sign=before.sign or casualty.sign,
            evidence=before.evidence + casualty.evidence,
        )
    known[casualty.id] = casualty
    turn.note(casualties=tuple(known.values()))


# -- release


def _release(turn: Turn, listening: tuple[ProcessId, ...]) -> None:
    """End the failed incarnation. Survivors in a collective hear nothing, so they are not asked."""
    limits = turn.state.terms.limits
    turn.set(phase=Phase.RELEASING)
    turn.cancel("settle")
    turn.cancel("rest")
    asked, doomed = [], []
    for process in turn.workers(*_LIVING):
        if process.stage is Stage.RAISED:
            turn.timer("farewell", limits.farewell_seconds)
        elif process.id in listening and process.stage is Stage.RUNNING and limits.grace_seconds > 0:
            asked.append(process)
        elif process.stage in (Stage.STARTING, Stage.WARM):
            _keep_for_later(turn, process)
        else:
            doomed.append(process)
    turn.kill(doomed)
    turn.ask(asked, int(signals.SIGTERM))
    if asked:
        turn.timer("grace", limits.grace_seconds)
    turn.timer("release", limits.release_seconds + max(limits.farewell_seconds, limits.grace_seconds))
    crew.open_store(turn, Incarnation(turn.state.incarnation + 1))
    released(turn)


def _keep_for_later(turn: Turn, process: Process) -> None:
    """A process that has not run anything yet serves the next incarnation as well as this one."""
    turn.put(process, incarnation=Incarnation(turn.state.incarnation + 1))


def grace_over(turn: Turn) -> None:
    turn.because("the grace is over")
    turn.kill([process for process in turn.workers(*_LIVING) if process.asked])


def farewell_over(turn: Turn) -> None:
    turn.because("a worker that raised has had its time")
    turn.kill(turn.workers(Stage.RAISED))


def unreleased(turn: Turn) -> None:
    """SIGKILL did not end a process. Nothing that this program can do will, and two incarnations must not overlap."""
    stuck = [p for p in turn.workers() if p.stage is not Stage.DEAD]
    names = ", ".join(f"rank {p.rank} (pid {p.pid})" for p in stuck)
    sentence = f"{names} cannot be killed: the kernel holds it, which is this node's fault"
    verdict = Verdict("unkillable", Blame.NODE, stuck[0].rank if stuck else None, "high", sentence)
    turn.because(sentence)
    turn.note(verdict=verdict)
    turn.say(sentence, Level.ERROR)
    if turn.state.exit_code is None:
        give_up(turn, verdict, "this node cannot go on")
    finish(turn)


def released(turn: Turn) -> None:
    """Go on once nobody of the failed incarnation is alive."""
    state = turn.state
    if state.phase not in (Phase.RELEASING, Phase.FAILING):
        return
    if any(process.stage is not Stage.DEAD for process in turn.workers()):
        return
    for name in ("grace", "farewell", "release"):
        turn.cancel(name)
    if state.phase is Phase.FAILING:
        finish(turn)
        return
    turn.note(released_at=turn.at)
    turn.because(f"incarnation {state.incarnation} is dead")
    _resolve(turn)


# -- judgement


def _resolve(turn: Turn) -> None:
    incident = turn.incident or _missing()
    turn.set(budget=budgets.refill(turn.state))
    failed = tuple(c for c in incident.casualties if c.incarnation == turn.state.incarnation)
    verdict = verdicts.judge(turn.state, failed)
    turn.note(verdict=incident.verdict or verdict, decided_at=turn.at)  # of several attempts the first cause counts
    why_not = verdicts.finality(turn.state, verdict) or budgets.spent(turn.state)
    if why_not is not None:
        give_up(turn, verdict, why_not)
        finish(turn)
        return
    for process in turn.workers(Stage.DEAD):
        turn.drop(process.id)
    turn.set(budget=budgets.charge(turn.state, verdict), incarnation=Incarnation(turn.state.incarnation + 1))
    seconds = budgets.rest_seconds(turn.state, turn.chance)
    turn.say(f"{verdict.sentence}; starting incarnation {turn.state.incarnation}", Level.WARNING)
    if seconds > 0:
        turn.set(phase=Phase.RESTING)
        turn.timer("rest", seconds)
        turn.because(f"{turn.state.budget.repeats + 1} failures without progress: resting {seconds:.1f} s")
    else:
        muster(turn)


def muster(turn: Turn) -> None:
    turn.set(phase=Phase.MUSTERING)
    turn.because(f"incarnation {turn.state.incarnation} musters")
    crew.muster(turn)


def cannot_start(turn: Turn, process: Process, reason: str) -> None:
    """Not even a cold start worked."""
    casualty = Casualty(
        id=process.id,
        rank=process.rank or Rank(0),
        incarnation=turn.state.incarnation,
        at=turn.at,
        sign="start",
        evidence=(f"cold start failed: {reason}",),
    )
    worker_failed(turn, casualty, (), None)


# -- the two ends


def stepped(turn: Turn, process: Process, **seen: float | None) -> None:
    """A worker has made its first step; when all have, the incident is over."""
    turn.put(process, stepped=True)
    incident = turn.incident
    if incident is None:
        return
    for name, value in seen.items():
        if value is not None:
            turn.note(**{name: max(value, getattr(turn.incident, name) or value)})
    if all(worker.stepped for worker in turn.workers()):
        recovered(turn, "every rank has made a step")


def recovered(turn: Turn, reason: str) -> None:
    incident = turn.incident
    if incident is None:
        return
    turn.cancel("settle")
    turn.because(reason)
    turn.note(recovered_at=turn.at, outcome="recovered")
    _close(turn, Status.RUNNING)
    turn.say(_account(turn, incident.number))


def _account(turn: Turn, number: int) -> str:
    incident = turn.state.incidents[str(number)]
    seconds = turn.at - min([incident.opened_at, *(casualty.at for casualty in incident.casualties)])
    lost = incident.steps_lost
    steps = "steps lost: unknown" if lost is None else f"{lost} step{'' if lost == 1 else 's'} lost"
    remedy = incident.remedy.sentence if incident.remedy else "recovered"
    return f"incident {number} over: {remedy}, {seconds:.2f} s from first symptom to first step, {steps}"


def _close(turn: Turn, status: Status) -> None:
    number = turn.state.open_incident
    turn.set(open_incident=0, status=status)
    turn.act(actions.CloseIncident(number=number))


def give_up(turn: Turn, verdict: Verdict, why: str) -> None:
    turn.because(f"stopping: {why}")
    turn.note(verdict=verdict)
    turn.note(remedy=Remedy("stop", sentence=f"stopped: {why}"), outcome="failed")
    turn.set(exit_code=budgets.exit_code(verdict), reason=f"{verdict.sentence}; {why}")


def finish(turn: Turn) -> None:
    """The job is over; whatever still lives is ended by the shell."""
    state = turn.state
    status = Status.COMPLETED if state.exit_code == 0 else Status.FAILED
    if state.stop_signal and state.phase is Phase.STOPPING:
        status = Status.STOPPED
    if turn.incident:
        if turn.incident.outcome == "open":
            turn.note(outcome=status.value.lower())
        _close(turn, status)
    for name in list(state.timers):
        turn.cancel(name)
    turn.set(status=status, phase=Phase.OVER)
    turn.act(actions.Finish(code=state.exit_code if state.exit_code is not None else 1))


def casualty_of(turn: Turn, process: Process, at: float | None = None, **known: object) -> Casualty:
    at = turn.at if at is None else at
    return Casualty(
        id=process.id,
        rank=process.rank or Rank(0),
        incarnation=process.incarnation,
        at=at,
        pid=process.pid,
        killed_by_us=process.signalled_at is not None and process.signalled_at <= at,
        **known,  # type: ignore[arg-type]
    )


def _missing() -> Incident:
    raise AssertionError("a recovery without an incident")
