"""What must hold after every event, and at the end. Each invariant is one function that returns a complaint or None.

They compare what the core believes and does with what is true on the simulated machine. An invariant that nothing
can break proves nothing: `mutants` has a broken core for each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from holdfast.core import budgets, fold
from holdfast.core.turn import Decision
from holdfast.model import actions
from holdfast.model.events import AnyEvent
from holdfast.model.state import Blame, JobState, Phase, Stage, Status

if TYPE_CHECKING:
    from holdfast.testing.world import World

ENDINGS = (Status.COMPLETED, Status.FAILED, Status.STOPPED)


class Look:
    """One event, what was decided about it, and the world after the actions."""

    __slots__ = ("actions", "after", "assigns", "before", "event", "reason", "world")

    def __init__(self, before: JobState, event: AnyEvent, decision: Decision, world: World) -> None:
        self.before = before
        self.event = event
        self.after = decision.state
        self.actions = decision.actions
        self.reason = decision.reason
        self.world = world
        self.assigns = [action for action in decision.actions if isinstance(action, actions.Assign)]


Invariant = Callable[[Look], str | None]
FinalInvariant = Callable[["World"], str | None]


def one_incarnation_executes(look: Look) -> str | None:
    """On the machine, not in the core's belief, no two incarnations' workers are alive together."""
    alive = {b.training.incarnation: None for b in look.world.machine.alive.values() if b.training is not None}
    return f"incarnations {list(alive)} are alive together" if len(alive) > 1 else None


def ranks_are_a_bijection(look: Look) -> str | None:
    """A world is assigned at once: every rank to one process, every process to one rank, none of them twice."""
    if not look.assigns:
        return None
    ranks = sorted(action.rank for action in look.assigns)
    ids = {action.id: None for action in look.assigns}
    if ranks != list(range(look.after.terms.world)) or len(ids) != len(ranks):
        return f"ranks {ranks} went to {list(ids)}"
    again = [id for id in ids if id in look.world.assigned]
    return f"{again} had been workers before" if again else None


def nothing_is_assigned_to_a_stale_incarnation(look: Look) -> str | None:
    """Workers are made only for the newest incarnation, and for each incarnation once."""
    for action in look.assigns:
        if action.incarnation != look.after.incarnation:
            return f"{action.id} was assigned to {action.incarnation}, the job is at {look.after.incarnation}"
        if action.incarnation in look.world.assigned.values():
            return f"incarnation {action.incarnation} was assigned twice"
    return None


def incarnation_never_decreases(look: Look) -> str | None:
    """It is the fencing token; it grows by one at a time."""
    before, after = look.before.incarnation, look.after.incarnation
    return f"incarnation went from {before} to {after}" if after - before not in (0, 1) else None


def committed_step_never_decreases(look: Look) -> str | None:
    """The best step that is known of the job only moves forwards."""
    before, after = look.before.best_step, look.after.best_step
    return f"best step went from {before} to {after}" if before is not None and (after or 0) < before else None


def restarts_stay_within_budget(look: Look) -> str | None:
    """A limit of the user's is hard; otherwise the budget and what progress has earned are."""
    if look.after.incarnation == look.before.incarnation:
        return None
    restarts, terms = look.after.incarnation - 1, look.after.terms
    if terms.max_restarts is not None:
        return f"{restarts} restarts of {terms.max_restarts}" if restarts > terms.max_restarts else None
    earned = (look.after.best_step or 0) // terms.refill_steps if terms.refill_steps else 0
    allowed = terms.budget + earned
    return f"{restarts} restarts of {allowed}" if restarts > allowed else None


def tokens_are_never_negative(look: Look) -> str | None:
    """Nothing is spent that is not there."""
    tokens = look.after.budget.tokens
    return f"{tokens} tokens" if tokens < 0 else None


def actions_have_a_reason(look: Look) -> str | None:
    """Whoever reads the journal is told why."""
    return f"{look.actions} for no reason" if look.actions and not look.reason else None


def fold_is_the_state(look: Look) -> str | None:
    """What was recorded adds up to what the core knows."""
    folded = look.world.folded
    if folded != look.after:
        return "the folded journal differs from the state"
    return "the folded processes are in another order" if list(folded.processes) != list(look.after.processes) else None


_BOUNDS: dict[Phase, tuple[str, ...]] = {
    Phase.WARMING: ("nursery",),
    Phase.RELEASING: ("release",),
    Phase.RESTING: ("rest",),
    Phase.MUSTERING: ("nursery", "birth", "store"),
    Phase.LEAVING: ("teardown", "release"),
    Phase.STOPPING: ("drain", "release"),
    Phase.FAILING: ("release",),
}


def waits_are_bounded(look: Look) -> str | None:
    """Every phase that waits has a timer that ends the wait; training waits for workers that are alive."""
    state = look.after
    if state.phase is Phase.TRAINING:
        living = [p for p in state.processes.values() if p.rank is not None and p.stage is not Stage.DEAD]
        return None if living else "training with nobody alive"
    bounds = _BOUNDS.get(state.phase)
    if bounds is None or any(name.partition(":")[0] in bounds for name in look.world.timers):
        return None
    return f"{state.phase} without a bound: only {list(look.world.timers)}"


def timers_agree(look: Look) -> str | None:
    """The timers that the core remembers are those that will ring."""
    return f"{look.after.timers} != {look.world.timers}" if look.after.timers != look.world.timers else None


def recovering_means_an_open_incident(look: Look) -> str | None:
    """The status says RECOVERING exactly while an incident is open."""
    state = look.after
    if (state.status is Status.RECOVERING) != bool(state.open_incident):
        return f"{state.status} with incident {state.open_incident} open"
    return None


def incidents_open_only_in_a_running_job(look: Look) -> str | None:
    """Deaths while leaving, stopping or failing are no incidents: nothing will be recovered."""
    opened = look.after.open_incident and look.after.open_incident != look.before.open_incident
    if opened and look.before.phase in (Phase.LEAVING, Phase.STOPPING, Phase.FAILING, Phase.OVER):
        return f"incident {look.after.open_incident} was opened in {look.before.phase}"
    return None


def incidents_are_closed_once(look: Look) -> str | None:
    """Every incident that ceases to be open is closed by an action, with an outcome, in the order of numbers."""
    was, now = look.before.open_incident, look.after.open_incident
    closed = [action.number for action in look.actions if isinstance(action, actions.CloseIncident)]
    for number in closed:
        if look.after.incidents[str(number)].outcome == "open":
            return f"incident {number} was closed without an outcome"
    newest = len(look.after.incidents)
    expected = [n for n in range(was or len(look.before.incidents) + 1, newest + 1) if n != now]
    return f"closed {closed}, expected {expected}" if closed != expected else None


def nobody_is_forgotten(look: Look) -> str | None:
    """Whoever lives is known to the core or has been sent SIGKILL."""
    processes = look.after.processes
    for body in look.world.machine.alive.values():
        if body.id not in processes and not body.killed:
            return f"{body.id} ({body.life.name}) lives and nobody knows of it"
    return None


def stores_are_opened_once(look: Look) -> str | None:
    """One store per incarnation in each place that can serve it, never for an incarnation that is over."""
    for action in look.actions:
        if isinstance(action, actions.OpenStore):
            if look.world.opened.get((action.incarnation, action.keeper)):
                return f"a second store for incarnation {action.incarnation} in {action.keeper}"
            if action.incarnation < look.after.incarnation:
                return f"a store for incarnation {action.incarnation}, which is over"
    return None


def workers_join_their_own_store(look: Look) -> str | None:
    """The port that workers are given is that of this incarnation's store, from the place that they think serves it."""
    for action in look.assigns:
        keeper = look.after.store.keeper if action.agent_store else None
        port = look.world.machine.ports.get((action.incarnation, keeper))
        if port != action.port:
            return (
                f"{action.id} was sent to port {action.port} for incarnation {action.incarnation}, which is at {port}"
            )
    return None


def blame_is_earned(look: Look) -> str | None:
    """A verdict names only what has happened: the node only for what SIGKILL cannot end, the user for his errors."""
    if look.after.phase is not Phase.OVER or look.before.phase is Phase.OVER or look.after.status is not Status.FAILED:
        return None
    code = look.after.exit_code
    training = look.world.machine.trainings.get(look.after.incarnation)
    if training is not None and any(body.hidden for body in training.members.values()):
        return None  # when it died, nobody can know
    causes = training.causes if training is not None else []
    if look.after.store.incarnation in look.world.machine.unopened:
        causes = [*causes, "no store"]
    if code == budgets.EXIT_USER and "error" not in causes:
        return f"the user is blamed, but what happened was {causes}"
    if code == budgets.EXIT_INFRASTRUCTURE and causes and all(cause == "error" for cause in causes):
        return f"infrastructure is blamed, but what happened was {causes}"
    return None


def the_node_is_blamed_for_what_it_did(look: Look) -> str | None:
    """That a process cannot be killed is said only of one that SIGKILL was sent to."""
    for number, incident in look.after.incidents.items():
        verdict = incident.verdict
        if verdict is None or verdict.blame is not Blame.NODE or look.before.incidents.get(number) == incident:
            continue
        bodies = [b for b in look.world.machine.bodies.values() if b.training is not None]
        if not any(b.rank == verdict.suspect and b.killed and b.unkillable for b in bodies):
            return f"rank {verdict.suspect} is said to be unkillable"
    return None


def completed_means_all_finished(look: Look) -> str | None:
    """COMPLETED only when every rank of one incarnation has finished, and then nothing else can come of it."""
    if look.after.phase is not Phase.OVER or look.before.phase is Phase.OVER:
        return None
    training = look.world.machine.trainings.get(look.after.incarnation)
    if look.after.status is Status.COMPLETED and (training is None or not training.complete):
        return "completed, but not every rank has finished"
    if look.after.status is not Status.COMPLETED and look.world.committed_by == look.after.incarnation:
        return f"every rank had finished, yet the job is {look.after.status}"
    return None


def the_exit_code_fits(look: Look) -> str | None:
    """0 if and only if completed, 128 + signal if and only if stopped, otherwise one of the documented codes."""
    codes = [action.code for action in look.actions if isinstance(action, actions.Finish)]
    if not codes:
        return None
    state = look.after
    allowed = {
        Status.COMPLETED: (0,),
        Status.STOPPED: (128 + state.stop_signal,),
        Status.FAILED: (budgets.EXIT_USER, budgets.EXIT_INFRASTRUCTURE, budgets.EXIT_NODE),
    }.get(state.status, ())
    if state.status is Status.FAILED and state.incarnation == 1 and state.store.port is None:
        allowed = (*allowed, budgets.EXIT_USAGE)  # a port that cannot be had is the command's mistake
    return f"{state.status} with exit code {codes[0]}" if codes[0] not in allowed else None


def over_is_over(look: Look) -> str | None:
    """The job finishes once; after that nothing is done, and no status but an ending is shown."""
    finishes = sum(isinstance(action, actions.Finish) for action in look.actions)
    if look.before.phase is Phase.OVER:
        return f"{look.actions} after the end" if look.actions else None
    over = look.after.phase is Phase.OVER
    if finishes != over or (look.after.status in ENDINGS) != over:
        return f"{finishes} Finish in phase {look.after.phase}, status {look.after.status}"
    return None


def nothing_is_begun_at_the_end(look: Look) -> str | None:
    """Who is leaving, stopping or failing starts no process and opens no store."""
    if look.before.phase in (Phase.LEAVING, Phase.STOPPING, Phase.FAILING):
        for action in look.actions:
            if isinstance(action, actions.StartProcess | actions.OpenStore | actions.Assign):
                return f"{type(action).__name__} in {look.before.phase}"
    return None


def spares_are_bounded(look: Look) -> str | None:
    """At most one set of spares and the set that replaces it, and none beyond what was asked for otherwise."""
    idle = sum(process.rank is None and process.incarnation == 0 for process in look.after.processes.values())
    limit = 2 * look.after.terms.spares + 2  # and a keeper with its successor
    return f"{idle} idle processes, {limit} allowed" if idle > limit else None


# -- at the end


def the_job_ends(world: World) -> str | None:
    """When faults stop, an end follows within bounded virtual time and a bounded number of events."""
    if world.state.phase is not Phase.OVER:
        return f"still {world.state.phase} after {world.events} events and {world.clock.now:.0f} s"
    return None


def the_journal_folds_from_disk(world: World) -> str | None:
    """The whole journal, written and read back, adds up to the last state without asking `decide`."""
    journal = msgspec.json.decode(msgspec.json.encode(world.journal))
    return "the journal read back folds to another state" if fold.fold(journal) != world.state else None


EVERY_EVENT: tuple[Invariant, ...] = (
    one_incarnation_executes,
    ranks_are_a_bijection,
    nothing_is_assigned_to_a_stale_incarnation,
    incarnation_never_decreases,
    committed_step_never_decreases,
    restarts_stay_within_budget,
    tokens_are_never_negative,
    actions_have_a_reason,
    fold_is_the_state,
    waits_are_bounded,
    timers_agree,
    recovering_means_an_open_incident,
    incidents_open_only_in_a_running_job,
    incidents_are_closed_once,
    nobody_is_forgotten,
    stores_are_opened_once,
    workers_join_their_own_store,
    blame_is_earned,
    the_node_is_blamed_for_what_it_did,
    completed_means_all_finished,
    the_exit_code_fits,
    over_is_over,
    nothing_is_begun_at_the_end,
    spares_are_bounded,
)

AT_THE_END: tuple[FinalInvariant, ...] = (the_job_ends, the_journal_folds_from_disk)

NAMES = ("decide_is_total", *(rule.__name__ for rule in EVERY_EVENT), *(rule.__name__ for rule in AT_THE_END))


def after_event(look: Look) -> tuple[str, str] | None:
    for rule in EVERY_EVENT:
        if (complaint := rule(look)) is not None:
            return rule.__name__, complaint
    return None


def at_the_end(world: World) -> tuple[str, str] | None:
    for rule in AT_THE_END:
        if (complaint := rule(world)) is not None:
            return rule.__name__, complaint
    return None
