"""Broken cores. Each mutant plants one mistake and names the invariant that must notice it.

An invariant that no mutant trips proves nothing, so the tests demand one for each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core import budgets, crew, fold, job, recovery, verdicts
from holdfast.core.turn import Decision, Turn
from holdfast.model import actions
from holdfast.model.actions import AnyAction
from holdfast.model.ids import Incarnation, Rank, Step
from holdfast.model.state import JobState, Origin, Phase, Process, Purpose, Stage, Status

Wrap = Callable[[Any], Any]


class Mutant(msgspec.Struct, frozen=True):
    name: str
    trips: str
    owner: Any
    attribute: str
    wrap: Wrap

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        sound = self.owner.__dict__[self.attribute]
        setattr(self.owner, self.attribute, self.wrap(sound))
        try:
            yield
        finally:
            setattr(self.owner, self.attribute, sound)


def _instead(replacement: Any) -> Wrap:
    return lambda _sound: replacement


def _before(extra: Callable[[Turn], None]) -> Wrap:
    """Do something wrong first, then what the sound function does."""

    def wrap(sound: Any) -> Any:
        def broken(turn: Turn, *rest: Any, **named: Any) -> Any:
            extra(turn)
            return sound(turn, *rest, **named)

        return broken

    return wrap


def _afterwards(extra: Callable[[Turn], None]) -> Wrap:
    def wrap(sound: Any) -> Any:
        def broken(turn: Turn, *rest: Any, **named: Any) -> Any:
            result = sound(turn, *rest, **named)
            extra(turn)
            return result

        return broken

    return wrap


def _acting(change: Callable[[AnyAction], AnyAction | None]) -> Wrap:
    """Every action goes through `change`, which may alter or drop it."""

    def wrap(sound: Any) -> Any:
        def decide(state: JobState, event: Any) -> Decision:
            decision: Decision = sound(state, event)
            changed = tuple(new for action in decision.actions if (new := change(action)) is not None)
            return replace(decision, actions=changed)

        return decide

    return wrap


def _dropping(kind: type[actions.Action]) -> Wrap:
    return _acting(lambda action: None if isinstance(action, kind) else action)


def _assigning(**changes: Any) -> Wrap:
    return _acting(lambda action: replace(action, **changes) if isinstance(action, actions.Assign) else action)


# -- mistakes


def _take_for_dead(turn: Turn) -> None:
    for process in turn.workers():
        turn.put(process, stage=Stage.DEAD)


def _count_anew(turn: Turn) -> None:
    turn.set(incarnation=Incarnation(max(1, turn.state.incarnation - 1)))


def _note_any_step(turn: Turn, step: Step) -> None:
    turn.set(best_step=step, stepped_ever=True)


def _charge_on_credit(sound: Any) -> Any:
    return lambda state, verdict: replace(sound(state, verdict), tokens=state.budget.tokens - 1)


def _forget_timers(sound: Any) -> Any:
    return lambda old, new: {name: change for name, change in sound(old, new).items() if name != "timers"}


def _forget_removed_keys(sound: Any) -> Any:
    def delta(old: JobState, new: JobState) -> fold.Delta:
        changes: fold.Delta = sound(old, new)
        if "processes" in changes:
            changes["processes"] = {key: value for key, value in changes["processes"].items() if value is not None}
        return changes

    return delta


def _insist_on_knowing(_turn: Turn, id: str) -> Process:
    return _turn.state.processes[id]  # type: ignore[index]


def _no_release_timer(sound: Any) -> Any:
    def timer(turn: Turn, name: str, seconds: float) -> None:
        if name != "release":
            sound(turn, name, seconds)

    return timer


def _cancel_quietly(turn: Turn, name: str) -> None:
    turn.set(timers={key: value for key, value in turn.state.timers.items() if key != name})


def _stay_recovering(turn: Turn) -> None:
    turn.set(status=Status.RECOVERING)


def _ask_again(turn: Turn) -> None:
    turn.set(store=replace(turn.state.store, asked=False))


def _keep_the_old_store(sound: Any) -> Any:
    def open_store(turn: Turn, incarnation: Incarnation) -> None:
        port = turn.state.store.port
        sound(turn, incarnation)
        if turn.state.store.port is None and turn.state.phase is Phase.RELEASING:
            turn.set(store=replace(turn.state.store, port=port))

    return open_store


def _finish_with_the_first(turn: Turn) -> None:
    if turn.state.phase is Phase.TRAINING:
        for process in turn.workers(Stage.RUNNING):
            turn.put(process, stage=Stage.FINISHED)


def _keep_talking(sound: Any) -> Any:
    def decide(state: JobState, event: Any) -> Decision:
        if state.phase is Phase.OVER:
            return Decision(state, (actions.Say(level=actions.Level.INFO, text="still here"),), "still here")
        decision: Decision = sound(state, event)
        return decision

    return decide


def _one_more_spare(turn: Turn) -> None:
    if turn.state.phase is Phase.TRAINING:
        crew.give_birth(turn, Purpose.SPARE, Origin.FORK)


def _wait_again(turn: Turn) -> None:
    turn.because("a little longer")
    turn.timer("release", turn.state.terms.limits.release_seconds)


def _blame_the_last(casualties: Any, **_: Any) -> Any:
    return casualties[-1]


def _without_a_reason(sound: Any) -> Any:
    return lambda state, event: replace(sound(state, event), reason="")


def _without_the_last(sound: Any) -> Any:
    return lambda deltas: sound(deltas[:-1])


MUTANTS: tuple[Mutant, ...] = (
    Mutant("does not wait for release", "one_incarnation_executes", recovery, "released", _before(_take_for_dead)),
    Mutant("assigns one rank twice", "ranks_are_a_bijection", job, "decide", _assigning(rank=Rank(0))),
    Mutant(
        "does not fence old incarnations",
        "nothing_is_assigned_to_a_stale_incarnation",
        job,
        "decide",
        _assigning(incarnation=Incarnation(1)),
    ),
    Mutant("counts incarnations anew", "incarnation_never_decreases", recovery, "recovered", _afterwards(_count_anew)),
    Mutant("believes any step", "committed_step_never_decreases", job, "_note_step", _instead(_note_any_step)),
    Mutant("ignores the budget", "restarts_stay_within_budget", budgets, "spent", _instead(lambda _state: None)),
    Mutant("restarts on credit", "tokens_are_never_negative", budgets, "charge", _charge_on_credit),
    Mutant("gives no reason", "actions_have_a_reason", job, "decide", _without_a_reason),
    Mutant("records no timers", "fold_is_the_state", fold, "delta", _forget_timers),
    Mutant("records no removed processes", "fold_is_the_state", fold, "delta", _forget_removed_keys),
    Mutant("raises on an unknown id", "decide_is_total", job, "_known", _instead(_insist_on_knowing)),
    Mutant("waits for release for ever", "waits_are_bounded", Turn, "timer", _no_release_timer),
    Mutant("cancels timers for itself only", "timers_agree", Turn, "cancel", _instead(_cancel_quietly)),
    Mutant(
        "goes on recovering", "recovering_means_an_open_incident", recovery, "recovered", _afterwards(_stay_recovering)
    ),
    Mutant(
        "opens incidents while leaving",
        "incidents_open_only_in_a_running_job",
        Turn,
        "ending",
        _instead(property(lambda _turn: False)),
    ),
    Mutant("closes no incident", "incidents_are_closed_once", job, "decide", _dropping(actions.CloseIncident)),
    Mutant("kills nobody", "nobody_is_forgotten", job, "decide", _dropping(actions.Kill)),
    Mutant("asks for the store again", "stores_are_opened_once", crew, "open_store", _before(_ask_again)),
    Mutant("resumes the old store", "workers_join_their_own_store", crew, "open_store", _keep_the_old_store),
    Mutant("blames the last to fall", "blame_is_earned", verdicts, "first_cause", _instead(_blame_the_last)),
    Mutant(
        "forgets those that it asked to leave",
        "the_node_is_blamed_for_what_it_did",
        recovery,
        "grace_over",
        _instead(lambda _turn: None),
    ),
    Mutant(
        "completes with the first rank",
        "completed_means_all_finished",
        job,
        "_finished",
        _before(_finish_with_the_first),
    ),
    Mutant(
        "always exits with 0",
        "the_exit_code_fits",
        job,
        "decide",
        _acting(lambda action: actions.Finish(code=0) if isinstance(action, actions.Finish) else action),
    ),
    Mutant("goes on after the end", "over_is_over", job, "decide", _keep_talking),
    Mutant(
        "starts processes while leaving",
        "nothing_is_begun_at_the_end",
        Turn,
        "ending",
        _instead(property(lambda _turn: False)),
    ),
    Mutant("cannot have enough spares", "spares_are_bounded", crew, "tend_spares", _afterwards(_one_more_spare)),
    Mutant("is patient for ever", "the_job_ends", recovery, "unreleased", _instead(_wait_again)),
    Mutant("loses the last record", "the_journal_folds_from_disk", fold, "fold", _without_the_last),
)
