"""The processes of a job: how many of which kind there should be, and from which rung of the ladder they come.

Rungs, cheapest first: a warm spare, a fork from the nursery, a cold start. When one fails the next is taken; a job
stops only when a cold start fails too.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core.turn import Turn
from holdfast.model import actions
from holdfast.model.actions import Level
from holdfast.model.ids import Incarnation, ProcessId, Rank
from holdfast.model.spec import Start
from holdfast.model.state import (
    NurseryStage,
    Origin,
    Phase,
    Process,
    Purpose,
    Remedy,
    Stage,
    Status,
    Store,
)

NURSERY_LOSSES_LIMIT = 3
SPARE_FAILURES_LIMIT = 3


# -- the nursery


def start_nursery(turn: Turn) -> None:
    nursery = turn.state.nursery
    turn.set(nursery=replace(nursery, stage=NurseryStage.STARTING))
    turn.act(actions.StartNursery())
    turn.timer("nursery", turn.state.terms.limits.nursery_seconds)


def nursery_warm(turn: Turn, generation: int) -> None:
    turn.cancel("nursery")
    turn.set(nursery=replace(turn.state.nursery, stage=NurseryStage.WARM, generation=generation))
    turn.because(f"the nursery is warm (generation {generation})")


def nursery_lost(turn: Turn, reason: str, then: NurseryStage = NurseryStage.STARTING) -> None:
    """Start another, a few times; after that, or where that is hopeless, every process starts cold."""
    nursery = replace(turn.state.nursery, losses=turn.state.nursery.losses + 1)
    turn.cancel("nursery")
    turn.because(f"the nursery is lost: {reason}")
    turn.set(nursery=nursery)
    if turn.ending:
        turn.set(nursery=replace(nursery, stage=NurseryStage.ABSENT))
    elif then is NurseryStage.GIVEN_UP:
        turn.set(nursery=replace(nursery, stage=then))
        turn.say(f"processes start cold: {reason}", Level.WARNING)
    elif nursery.losses >= NURSERY_LOSSES_LIMIT:
        turn.set(nursery=replace(nursery, stage=NurseryStage.GIVEN_UP))
        turn.say(
            f"the nursery was lost {nursery.losses} times ({reason}); processes start cold from now on", Level.WARNING
        )
    else:
        turn.say(f"the nursery was lost ({reason}); starting another", Level.WARNING)
        start_nursery(turn)


def _can_fork(turn: Turn) -> bool:
    return turn.state.nursery.stage is NurseryStage.WARM


# -- births


def give_birth(
    turn: Turn, purpose: Purpose, origin: Origin, rank: Rank | None = None, seat: Rank | None = None
) -> Process:
    births = turn.state.births + 1
    process = Process(
        id=ProcessId(f"p{births}"),
        purpose=purpose,
        origin=origin,
        generation=turn.state.nursery.generation if origin is Origin.FORK else 0,
        incarnation=turn.state.incarnation if purpose is Purpose.WORKER else Incarnation(0),
        rank=rank,
        seat=seat,
    )
    turn.set(births=births)
    turn.put(process)
    turn.act(actions.StartProcess(id=process.id, origin=origin, seat=seat if rank is None else rank))
    turn.timer(f"birth:{process.id}", turn.state.terms.limits.birth_seconds)
    return process


def born(turn: Turn, process: Process, pid: int) -> None:
    turn.cancel(f"birth:{process.id}")
    turn.put(process, stage=Stage.WARM, pid=pid)
    turn.because(f"{process.id} is warm")
    if process.purpose is Purpose.STORE and _store_is_wanted(turn):
        _open_store_in(turn, process.id)


def stillborn(turn: Turn, process: Process, reason: str) -> None:
    """Take the next rung for whatever this process was meant to be."""
    turn.cancel(f"birth:{process.id}")
    turn.drop(process.id)
    turn.because(f"{process.id} did not start: {reason}")
    if process.purpose is Purpose.STORE:
        turn.set(store=replace(turn.state.store, keeper=None))
        spare_failed(turn, reason)
        if _store_is_wanted(turn):
            serve_store_from_rank_0(turn, reason)
    elif process.purpose is Purpose.SPARE:
        spare_failed(turn, reason)


def spare_failed(turn: Turn, reason: str) -> None:
    failures = turn.state.spare_failures + 1
    turn.set(spare_failures=failures)
    if failures == SPARE_FAILURES_LIMIT:
        turn.say(f"no more spares: {failures} in a row failed ({reason})", Level.WARNING)


# -- the store


def open_store(turn: Turn, incarnation: Incarnation) -> None:
    """Ask for an empty store for this incarnation, once."""
    store = turn.state.store
    if store.asked and store.incarnation == incarnation:
        return
    turn.set(
        store=Store(
            incarnation=incarnation,
            keeper=store.keeper,
            asked=True,
            last_port=store.port or store.last_port,
            lost_in=store.lost_in,
            lost_at=store.lost_at,
        )
    )
    turn.timer("store", turn.state.terms.limits.store_seconds)
    keeper = turn.state.processes.get(store.keeper) if store.keeper else None
    if keeper is not None and keeper.stage in (Stage.WARM, Stage.RUNNING):
        _open_store_in(turn, keeper.id)
    elif keeper is not None and keeper.stage is Stage.STARTING:
        turn.because("the store waits for its keeper")
    elif turn.state.terms.keeper and _can_fork(turn):
        keeper = give_birth(turn, Purpose.STORE, Origin.FORK)
        turn.set(store=replace(turn.state.store, keeper=keeper.id))
    else:
        serve_store_from_rank_0(turn, "no keeper")


def _store_is_wanted(turn: Turn) -> bool:
    return turn.state.store.asked and turn.state.store.port is None and not turn.ending


def _open_store_in(turn: Turn, id: ProcessId) -> None:
    keeper, incarnation = turn.state.processes[id], turn.state.store.incarnation
    turn.put(keeper, stage=Stage.RUNNING, incarnation=keeper.incarnation or incarnation)
    turn.act(actions.OpenStore(incarnation=incarnation, keeper=id))


def serve_store_from_rank_0(turn: Turn, reason: str) -> None:
    turn.because(f"rank 0 serves the store: {reason}")
    if turn.state.store.keeper in turn.state.processes:
        turn.kill([turn.state.processes[turn.state.store.keeper]])
    turn.set(store=replace(turn.state.store, keeper=None))
    turn.act(actions.OpenStore(incarnation=turn.state.store.incarnation, keeper=None))
    turn.timer("store", turn.state.terms.limits.store_seconds)


def keeper_lost(turn: Turn, keeper: Process, seen_at: float) -> None:
    """The ranks keep their groups without it; what they fail at from now on is not their fault.

    A store that nobody has been sent to yet is opened anew by rank 0.
    """
    state = turn.state
    turn.set(store=replace(state.store, keeper=None))
    if turn.ending:
        return
    spare_failed(turn, "the keeper was lost")
    if 0 < keeper.incarnation <= state.incarnation and state.phase in (Phase.TRAINING, Phase.RELEASING):
        turn.set(store=replace(turn.state.store, lost_in=state.incarnation, lost_at=seen_at))
    if state.phase is Phase.TRAINING:
        turn.say(
            "the process that serves the store was lost; workers go on, the next incarnation gets another",
            Level.WARNING,
        )
    elif state.store.asked:
        turn.set(store=replace(turn.state.store, port=None))
        serve_store_from_rank_0(turn, "the keeper was lost")


# -- mustering


def muster(turn: Turn) -> None:
    """Have a process for every rank and an empty store; when all are there, assign."""
    state = turn.state
    open_store(turn, state.incarnation)
    taken = {process.rank: process for process in turn.workers()}
    spares = turn.spares(Stage.WARM)
    for rank in range(state.terms.world):
        if rank in taken:
            continue
        if spares:
            spare = min(spares, key=lambda spare: (spare.seat != rank, -spare.generation, int(spare.id[1:])))
            spares.remove(spare)
            turn.put(spare, purpose=Purpose.WORKER, incarnation=state.incarnation, rank=Rank(rank), was_spare=True)
        elif (origin := _rung(turn)) is not None:
            give_birth(turn, Purpose.WORKER, origin, Rank(rank))
    ready = turn.workers(Stage.WARM)
    if len(ready) == state.terms.world and turn.state.store.port is not None:
        _assign(turn, ready)


def _rung(turn: Turn) -> Origin | None:
    """Where the next process should come from; None: wait, the nursery will be back sooner than cold starts are."""
    if _can_fork(turn):
        return Origin.FORK if turn.state.spare_failures < SPARE_FAILURES_LIMIT else Origin.COLD
    return None if turn.state.nursery.stage is NurseryStage.STARTING else Origin.COLD


def _assign(turn: Turn, workers: list[Process]) -> None:
    state = turn.state
    assert state.store.port is not None
    turn.because(f"every rank of incarnation {state.incarnation} has a warm process and the store is empty and open")
    for process in workers:
        turn.put(process, stage=Stage.RUNNING)
        turn.act(
            actions.Assign(
                id=process.id,
                rank=Rank(process.rank or 0),
                incarnation=state.incarnation,
                restarts=state.budget.restarts,
                port=state.store.port,
                agent_store=state.store.keeper is not None,
                learn=process.rank == 0 and not state.learned,
            )
        )
    remedy = Remedy(
        "restart",
        spares=sum(process.was_spare for process in workers),
        forks=sum(not process.was_spare and process.origin is Origin.FORK for process in workers),
        colds=sum(not process.was_spare and process.origin is Origin.COLD for process in workers),
    )
    turn.note(assigned_at=turn.at, remedy=replace(remedy, sentence=_in_words(remedy)))
    turn.set(
        phase=Phase.TRAINING,
        status=Status.RECOVERING if turn.incident else Status.RUNNING,
        training_at=turn.at,
        spare_failures=0,
    )
    turn.timer("spares", state.terms.limits.spares_seconds)
    if turn.incident:
        turn.timer("settle", state.terms.limits.settle_seconds)


def _in_words(remedy: Remedy) -> str:
    parts = [
        f"{count} {one if count == 1 else many}"
        for count, one, many in (
            (remedy.spares, "warm spare", "warm spares"),
            (remedy.forks, "fork from the nursery", "forks from the nursery"),
            (remedy.colds, "cold start", "cold starts"),
        )
        if count
    ]
    return "restarted from " + " and ".join(parts)


# -- spares


def tend_spares(turn: Turn) -> None:
    """Keep as many spares as were asked for, of the newest generation, while nothing more urgent goes on."""
    state = turn.state
    if (
        state.phase is not Phase.TRAINING
        or state.open_incident
        or not state.spares_wanted
        or not _can_fork(turn)
        or state.spare_failures >= SPARE_FAILURES_LIMIT
    ):
        return
    current = [spare for spare in turn.spares() if spare.generation == state.nursery.generation]
    seats = {spare.seat for spare in current}
    empty = [Rank(rank) for rank in range(state.terms.world) if rank not in seats]
    for seat in empty[: max(0, state.terms.spares - len(current))]:
        turn.because("the spares are incomplete")
        give_birth(turn, Purpose.SPARE, Origin.FORK, seat=seat)
    outdated = [spare for spare in turn.spares() if spare.generation != state.nursery.generation]
    if outdated and all(spare.stage is Stage.WARM for spare in turn.spares()):
        turn.because("newer spares are ready")
        turn.kill(outdated)
    if state.terms.keeper and state.store.keeper is None and state.store.lost_in == state.incarnation:
        turn.because("the next incarnation needs a keeper")
        keeper = give_birth(turn, Purpose.STORE, Origin.FORK)
        turn.set(store=replace(turn.state.store, keeper=keeper.id))


def uses_nursery(turn: Turn) -> bool:
    return turn.state.terms.start is Start.NURSERY
