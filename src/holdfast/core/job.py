"""`decide`: what a job does about each fact. One table of rules, one entry per kind of event.

    decide(state, event) -> Decision(state, actions, reason)

Purely computational: the same state and event always give the same decision. Facts about processes that no longer
exist are no error; they are old news, and the decision says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from holdfast.core import budgets, crew, recovery
from holdfast.core.turn import Decision, Turn
from holdfast.model import actions, events
from holdfast.model.actions import Level
from holdfast.model.exits import Exit
from holdfast.model.ids import Incarnation, Step
from holdfast.model.state import (
    JobState,
    NurseryStage,
    Origin,
    Phase,
    Process,
    Purpose,
    Stage,
)

EXIT_SIGNAL_BASE = 128


def decide(state: JobState, event: events.AnyEvent) -> Decision:
    turn = Turn(state, event.at, getattr(event, "chance", 0.5))
    if state.phase is Phase.OVER:
        return Decision(state, (), "the job is over")
    _RULES[type(event)](turn, event)
    _tend(turn)
    return turn.decision()


def _tend(turn: Turn) -> None:
    """What follows from any event: the next phase as soon as its conditions hold."""
    if turn.state.phase in (Phase.RELEASING, Phase.FAILING):
        recovery.released(turn)
    if turn.state.phase is Phase.MUSTERING:
        crew.muster(turn)
    if turn.state.phase in (Phase.LEAVING, Phase.STOPPING):
        _leave(turn)
    crew.tend_spares(turn)


# -- the beginning


def _submitted(turn: Turn, event: events.Submitted) -> None:
    if turn.state.phase is not Phase.NEW:
        turn.because("submitted already")
        return
    turn.set(terms=event.terms, started_at=event.at, incarnation=Incarnation(1))
    turn.set(budget=budgets.opening(turn.state))
    turn.because("submitted")
    if crew.uses_nursery(turn):
        turn.set(phase=Phase.WARMING)
        crew.start_nursery(turn)
    else:
        recovery.muster(turn)


def _nursery_warm(turn: Turn, event: events.NurseryWarm) -> None:
    crew.nursery_warm(turn, event.generation)
    if turn.state.phase is Phase.WARMING:
        recovery.muster(turn)


def _nursery_lost(turn: Turn, event: events.NurseryLost) -> None:
    crew.nursery_lost(turn, event.reason, NurseryStage.GIVEN_UP if event.final else NurseryStage.STARTING)
    unborn = [p for p in turn.state.processes.values() if p.stage is Stage.STARTING and p.origin is Origin.FORK]
    if unborn:  # a fork that had just succeeded must not live on unknown
        turn.act(actions.Kill(ids=tuple(process.id for process in unborn)))
    for process in unborn:
        crew.stillborn(turn, process, "the nursery was lost")
    if turn.state.phase is Phase.WARMING and turn.state.nursery.stage is NurseryStage.GIVEN_UP:
        recovery.muster(turn)


# -- processes


def _process_warm(turn: Turn, event: events.ProcessWarm) -> None:
    process = _known(turn, event.id)
    if process is not None and process.stage is Stage.STARTING:
        crew.born(turn, process, event.pid)


def _process_stillborn(turn: Turn, event: events.ProcessStillborn) -> None:
    if process := _known(turn, event.id):
        _not_born(turn, process, event.reason)


def _not_born(turn: Turn, process: Process, reason: str) -> None:
    if process.stage is not Stage.STARTING:
        turn.because(f"{process.id} was born already")
        return
    crew.stillborn(turn, process, reason)
    if process.purpose is not Purpose.WORKER or turn.ending:
        return
    if process.origin is Origin.FORK:
        turn.because("falling through to a cold start")
        cold = crew.give_birth(turn, Purpose.WORKER, Origin.COLD, process.rank)
        turn.put(cold, incarnation=process.incarnation)
    elif process.incarnation == turn.state.incarnation:
        recovery.cannot_start(turn, process, reason)


def _process_lost(turn: Turn, event: events.ProcessLost) -> None:
    process = _known(turn, event.id)
    if process is None or process.stage is Stage.DEAD:
        return
    turn.cancel(f"birth:{process.id}")
    turn.cancel(f"stopped:{process.id}")
    turn.because(f"{process.id} is dead (seen by {event.sign})")
    if process.stage is Stage.STARTING:
        _not_born(turn, process, f"died at birth ({_in_words(event.exit)})")
    elif process.purpose is Purpose.STORE:
        turn.drop(process.id)
        if process.id == turn.state.store.keeper:
            crew.keeper_lost(turn, process, event.seen_at)
    elif process.stage is Stage.WARM:
        turn.drop(process.id)
        _waiting_lost(turn, process)
    elif process.incarnation == turn.state.incarnation:
        turn.put(process, stage=Stage.DEAD)
        _worker_lost(turn, process, event)
    else:
        turn.drop(process.id)


def _waiting_lost(turn: Turn, process: Process) -> None:
    """Another takes its place; but when cold starts die as well there is no rung below, and no end to trying."""
    reason = "died while waiting"
    crew.spare_failed(turn, reason)
    is_last_rung = process.purpose is Purpose.WORKER and process.origin is Origin.COLD
    if is_last_rung and process.incarnation == turn.state.incarnation and turn.state.phase is Phase.MUSTERING:
        recovery.cannot_start(turn, process, reason)


def _worker_lost(turn: Turn, process: Process, event: events.ProcessLost) -> None:
    if event.step is not None:
        _note_step(turn, event.step)
    ended_well = process.stage is Stage.FINISHED or event.exit.code == 0
    if ended_well and turn.state.phase in (Phase.TRAINING, Phase.LEAVING):
        if event.exit.code != 0:
            turn.say(
                f"rank {process.rank} finished its work and then failed on the way out "
                f"({_in_words(event.exit)}); the work counts",
                Level.WARNING,
            )
        turn.because(f"rank {process.rank} is done")
        turn.put(turn.state.processes[process.id], stepped=True)
        _finished(turn)
        return
    casualty = recovery.casualty_of(
        turn, process, at=event.seen_at, sign=event.sign, exit=event.exit, evidence=event.evidence
    )
    recovery.worker_failed(turn, casualty, event.listening, event.step)


def _in_words(exit: Exit) -> str:
    return f"signal {exit.signal}" if exit.signal is not None else f"exit code {exit.code}"


def _process_gone(turn: Turn, event: events.ProcessGone) -> None:
    turn.because(f"{event.id} is gone for good")


def _process_stopped(turn: Turn, event: events.ProcessStopped) -> None:
    process = _known(turn, event.id)
    if process is None or process.stage not in (Stage.RUNNING, Stage.WARM, Stage.FINISHED):
        return
    seconds = turn.state.terms.limits.stopped_seconds
    turn.put(process, stopped_at=event.at)
    turn.timer(f"stopped:{process.id}", seconds)
    turn.because(f"{process.id} was stopped by signal {event.signal}")
    if process.purpose is Purpose.WORKER:
        turn.say(
            f"rank {process.rank} (pid {process.pid}) was stopped from outside; "
            f"if it is not continued within {seconds:g} s it is killed",
            Level.WARNING,
        )


def _process_continued(turn: Turn, event: events.ProcessContinued) -> None:
    process = _known(turn, event.id)
    if process is not None and process.stopped_at is not None:
        turn.cancel(f"stopped:{process.id}")
        turn.put(process, stopped_at=None)
        turn.because(f"{process.id} goes on")


def _stopped_too_long(turn: Turn, id: str) -> None:
    process = turn.state.processes.get(id)
    if process is None or process.stopped_at is None:
        return
    turn.because(f"{id} has been stopped for too long")
    turn.kill([process])
    current = process.purpose is Purpose.WORKER and process.incarnation == turn.state.incarnation
    if current and process.stage is Stage.RUNNING:
        evidence = (f"stopped by a signal from outside for {turn.at - process.stopped_at:.1f} s and not continued",)
        casualty = replace(recovery.casualty_of(turn, process, sign="stop"), evidence=evidence, killed_by_us=False)
        recovery.worker_failed(turn, casualty, (), None)


# -- what workers report


def _worker_raised(turn: Turn, event: events.WorkerRaised) -> None:
    process = _current_worker(turn, event)
    if process is None:
        return
    if event.step is not None:
        _note_step(turn, event.step)
    ours = recovery.casualty_of(turn, process, raised=event.error)
    if process.stage is Stage.RUNNING:
        turn.put(process, stage=Stage.RAISED)
    recovery.worker_failed(turn, ours, event.listening, event.step)


def _worker_ended(turn: Turn, event: events.WorkerEnded) -> None:
    process = _current_worker(turn, event)
    if process is None or process.stage is not Stage.RUNNING:
        return
    if event.code:
        turn.put(process, stage=Stage.RAISED)
        turn.because(f"rank {process.rank} is leaving with code {event.code}")
        if turn.state.phase in (Phase.TRAINING, Phase.MUSTERING):
            casualty = recovery.casualty_of(turn, process, exit=Exit(code=event.code))
            recovery.worker_failed(turn, casualty, event.listening, None)
        return
    turn.put(process, stage=Stage.FINISHED, stepped=True)
    turn.because(f"rank {process.rank} has finished")
    _finished(turn)


def _worker_stepped(turn: Turn, event: events.WorkerStepped) -> None:
    process = _current_worker(turn, event)
    if process is None:
        return
    turn.set(stepped_ever=True)
    turn.because(f"rank {process.rank} has made its first step")
    if turn.state.phase is not Phase.TRAINING:
        return
    if turn.incident is not None and event.resumed_from is not None and turn.incident.resumed_from is None:
        turn.note(resumed_from=event.resumed_from)
    recovery.stepped(turn, process, regrouped_at=event.group_at, restored_at=event.restored_at)
    if turn.incident is None and all(worker.stepped for worker in turn.workers()):
        _want_spares(turn)


def _learned(turn: Turn, event: events.Learned) -> None:
    turn.because(f"the script's {event.modules} imports are known")
    if turn.state.learned:
        return
    turn.set(learned=True)
    if turn.state.nursery.stage is NurseryStage.WARM:
        _want_spares(turn)
        crew.tend_spares(turn)  # a first set before the nursery is busy importing
        turn.act(actions.Preload())


def _sources_changed(turn: Turn, event: events.SourcesChanged) -> None:
    turn.because("the script's own files have changed")
    turn.note(files_changed=event.files)
    turn.say(f"changed since the last incarnation: {', '.join(event.files[:5])}", Level.WARNING)


def _want_spares(turn: Turn) -> None:
    turn.cancel("spares")
    turn.set(spares_wanted=True)


def _progressed(turn: Turn, event: events.Progressed) -> None:
    if event.step is not None:
        _note_step(turn, event.step)


def _note_step(turn: Turn, step: Step) -> None:
    if turn.state.best_step is None or step > turn.state.best_step:
        turn.set(best_step=step, stepped_ever=True)
        budget = budgets.refill(turn.state)
        if budget.refilled_at != turn.state.budget.refilled_at:
            turn.set(budget=budget, spare_failures=0)


# -- the store


def _store_open(turn: Turn, event: events.StoreOpen) -> None:
    store = turn.state.store
    if event.incarnation == store.incarnation and store.asked and store.port is None:
        turn.cancel("store")
        turn.set(store=replace(store, port=event.port))
        turn.because(f"the store of incarnation {event.incarnation} is open on port {event.port}")


def _store_failed(turn: Turn, event: events.StoreFailed) -> None:
    store = turn.state.store
    if event.incarnation != store.incarnation or not store.asked or store.port is not None or turn.ending:
        return
    turn.because(f"the store could not be opened: {event.reason}")
    if store.keeper is not None:
        crew.serve_store_from_rank_0(turn, event.reason)
    else:
        code = budgets.EXIT_USAGE if event.incarnation == 1 else budgets.EXIT_INFRASTRUCTURE
        _fail(turn, code, f"the store could not be opened: {event.reason}")


# -- the end


def _finished(turn: Turn) -> None:
    """Completion is a commit: once every rank has finished, nothing that follows can undo it."""
    workers = turn.workers()
    if len(workers) < turn.state.terms.world or turn.state.phase is not Phase.TRAINING:
        return
    if all(worker.stage in (Stage.FINISHED, Stage.DEAD) for worker in workers):
        turn.because("every rank has finished: the job is complete")
        recovery.recovered(turn, "every rank has finished")
        turn.set(phase=Phase.LEAVING, exit_code=0, reason="every rank finished")
        turn.timer("teardown", turn.state.terms.limits.teardown_seconds)


def _leave(turn: Turn) -> None:
    if all(worker.stage is Stage.DEAD for worker in turn.workers()):
        recovery.finish(turn)


def _fail(turn: Turn, code: int, reason: str) -> None:
    turn.set(exit_code=code, reason=reason)
    turn.say(reason, Level.ERROR)
    living = [p for p in turn.workers() if p.stage is not Stage.DEAD]
    turn.kill(living)
    turn.set(phase=Phase.FAILING)
    turn.timer("release", turn.state.terms.limits.release_seconds)


def _stop_asked(turn: Turn, event: events.StopAsked) -> None:
    state = turn.state
    if state.phase in (Phase.STOPPING, Phase.LEAVING):
        turn.because("asked to stop while leaving: no more waiting")
        _drained(turn, "")
        return
    running = turn.workers(Stage.RUNNING, Stage.RAISED, Stage.FINISHED)
    turn.because(f"asked to stop by signal {event.signal}")
    for name in list(state.timers):
        if not name.startswith("birth:"):
            turn.cancel(name)
    turn.set(
        phase=Phase.STOPPING,
        stop_signal=event.signal,
        exit_code=EXIT_SIGNAL_BASE + event.signal,
        reason=f"stopped by signal {event.signal}",
    )
    turn.kill(turn.workers(Stage.STARTING, Stage.WARM))
    turn.ask(running, _passed_on(event.signal))
    if running:
        seconds = state.terms.limits.shutdown_seconds
        turn.say(f"stopping: workers have {seconds:g} s to leave; ask again to end them at once", Level.WARNING)
    turn.timer("drain", state.terms.limits.shutdown_seconds)


def _passed_on(signal: int) -> int:
    """Ctrl-C asks workers as a scheduler would: with the signal that training scripts handle."""
    return 15 if signal == 2 else signal


# -- timers


def _timer_fired(turn: Turn, event: events.TimerFired) -> None:
    name = event.timer
    if name not in turn.state.timers:
        turn.because(f"the timer {name} was cancelled")
        return
    turn.set(timers={key: value for key, value in turn.state.timers.items() if key != name})
    kind, _, id = name.partition(":")
    _TIMERS[kind](turn, id)


def _nursery_timed_out(turn: Turn, _id: str) -> None:
    crew.nursery_lost(turn, f"not warm after {turn.state.terms.limits.nursery_seconds:g} s")
    if turn.state.phase is Phase.WARMING and turn.state.nursery.stage is NurseryStage.GIVEN_UP:
        recovery.muster(turn)


def _birth_timed_out(turn: Turn, id: str) -> None:
    process = turn.state.processes.get(id)
    if process is not None and process.stage is Stage.STARTING:
        turn.act(actions.Kill(ids=(process.id,)))
        _not_born(turn, process, f"not warm after {turn.state.terms.limits.birth_seconds:g} s")


def _store_timed_out(turn: Turn, _id: str) -> None:
    reason = f"not open after {turn.state.terms.limits.store_seconds:g} s"
    _store_failed(turn, events.StoreFailed(at=turn.at, incarnation=turn.state.store.incarnation, reason=reason))


def _rested(turn: Turn, _id: str) -> None:
    recovery.muster(turn)


def _spares_due(turn: Turn, _id: str) -> None:
    turn.because("time for spares, steps or not")
    _want_spares(turn)


def _settled(turn: Turn, _id: str) -> None:
    """Without countable steps, running for a while is the best sign of recovery there is."""
    if not turn.state.stepped_ever:
        recovery.recovered(turn, f"running for {turn.state.terms.limits.settle_seconds:g} s, steps unknown")


def _drained(turn: Turn, _id: str) -> None:
    turn.because("the time to leave is over")
    turn.kill([p for p in turn.workers() if p.stage is not Stage.DEAD])
    turn.timer("release", turn.state.terms.limits.release_seconds)


_TIMERS: dict[str, Callable[[Turn, str], None]] = {
    "nursery": _nursery_timed_out,
    "birth": _birth_timed_out,
    "store": _store_timed_out,
    "grace": lambda turn, _id: recovery.grace_over(turn),
    "farewell": lambda turn, _id: recovery.farewell_over(turn),
    "release": lambda turn, _id: recovery.unreleased(turn),
    "rest": _rested,
    "stopped": _stopped_too_long,
    "spares": _spares_due,
    "settle": _settled,
    "drain": _drained,
    "teardown": _drained,
}

_RULES: dict[type[events.Event], Callable[[Turn, Any], None]] = {
    events.Submitted: _submitted,
    events.NurseryWarm: _nursery_warm,
    events.NurseryLost: _nursery_lost,
    events.ProcessWarm: _process_warm,
    events.ProcessStillborn: _process_stillborn,
    events.ProcessLost: _process_lost,
    events.ProcessGone: _process_gone,
    events.ProcessStopped: _process_stopped,
    events.ProcessContinued: _process_continued,
    events.WorkerRaised: _worker_raised,
    events.WorkerEnded: _worker_ended,
    events.WorkerStepped: _worker_stepped,
    events.Learned: _learned,
    events.SourcesChanged: _sources_changed,
    events.Progressed: _progressed,
    events.StoreOpen: _store_open,
    events.StoreFailed: _store_failed,
    events.TimerFired: _timer_fired,
    events.StopAsked: _stop_asked,
}


def _known(turn: Turn, id: str) -> Process | None:
    process = turn.state.processes.get(id)
    if process is None:
        turn.because(f"{id} is not known any more")
    return process


def _current_worker(turn: Turn, event: Any) -> Process | None:
    """The worker an event speaks of, if it belongs to this incarnation: anything older is fenced off here."""
    process = _known(turn, event.id)
    if process is None or process.purpose is not Purpose.WORKER:
        return None
    if process.incarnation != turn.state.incarnation:
        turn.because(f"{process.id} belongs to incarnation {process.incarnation}, not to {turn.state.incarnation}")
        return None
    if process.stage in (Stage.STARTING, Stage.WARM):
        turn.because(f"{process.id} has not been given any work")
        return None
    return process
