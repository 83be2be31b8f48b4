"""The table of rules: what is decided about each kind of event in each phase that treats it differently."""

from typing import NamedTuple

import pytest

from holdfast.core import job
from holdfast.model import actions, events
from holdfast.model.exits import Exit
from holdfast.model.spec import Limits, Start
from holdfast.model.state import JobState, NurseryStage, Origin, Phase, Purpose, Stage, Status
from tests.core.story import ERROR, KILLED, SEGFAULT, WELL, Story


def cold(**terms):
    return Story(start=Start.COLD, keeper=False, **terms)


def releasing(**terms):
    return Story(**terms).training().stepped().lose_rank(0)


def resting():
    """The second failure in a row without progress."""
    story = releasing().bury()
    return story.warm_all().opened().lose_rank(0).bury()


def failing():
    story = Story(keeper=False).training().stepped().lose_rank(0)
    return story.tell(events.StoreFailed, incarnation=2, reason="address in use")


def stopping():
    return Story().training().tell(events.StopAsked, signal=15)


def farewell():
    return Story().training().stepped().raised(0)


def asked_to_leave():
    story = Story().training().stepped()
    return story.lose_rank(0, listening=(story.rank(1),))


def paused():
    story = Story().training().stepped()
    return story.tell(events.ProcessStopped, id=story.rank(0), signal=19)


def uncountable_recovery():
    return Story().training().lose_rank(0).bury().warm_all().opened()


class Row(NamedTuple):
    name: str
    given: Story
    tell: tuple
    phase: Phase
    does: list[str]
    because: str


def row(name, given, kind, *, phase, does=(), because="", **fields):
    return Row(name, given, (kind, fields), phase, sorted(does), because)


def first(story, purpose=Purpose.WORKER):
    return story.ids(purpose)[0]


NURSERY = Story().submitted()
MUSTER = Story().mustering()
TRAIN = Story().training()
STEPPED = Story().training().stepped()
COLD = cold().submitted()
END = Story().leaving()
REC = releasing()
STOP = stopping()
WORKER = first(MUSTER)
KEEPER = first(MUSTER, Purpose.STORE)

ROWS = [
    row(
        "a job starts with its nursery",
        Story(),
        events.Submitted,
        terms=NURSERY.terms,
        phase=Phase.WARMING,
        does=["StartNursery", "SetTimer"],
        because="submitted",
    ),
    row(
        "a job without a nursery starts cold",
        Story(),
        events.Submitted,
        terms=cold().terms,
        phase=Phase.MUSTERING,
        does=["OpenStore", "SetTimer", "SetTimer", *["StartProcess", "SetTimer"] * 2],
        because="musters",
    ),
    row(
        "a job is submitted once",
        TRAIN,
        events.Submitted,
        terms=NURSERY.terms,
        phase=Phase.TRAINING,
        because="submitted already",
    ),
    row(
        "a warm nursery forks a keeper and every rank",
        NURSERY,
        events.NurseryWarm,
        generation=1,
        phase=Phase.MUSTERING,
        does=["CancelTimer", "SetTimer", *["StartProcess", "SetTimer"] * 3],
        because="the nursery is warm",
    ),
    row(
        "a lost nursery is replaced",
        NURSERY,
        events.NurseryLost,
        reason="signal 9",
        phase=Phase.WARMING,
        does=["CancelTimer", "Say", "StartNursery", "SetTimer"],
        because="the nursery is lost",
    ),
    row(
        "what a lost nursery was forking is killed, in case it had come to be",
        MUSTER,
        events.NurseryLost,
        reason="signal 9",
        phase=Phase.MUSTERING,
        does=["Say", "StartNursery", "SetTimer", "Kill", *["CancelTimer"] * 3, "OpenStore", "SetTimer"],
        because="did not start",
    ),
    row(
        "nobody needs a nursery while leaving",
        END,
        events.NurseryLost,
        reason="signal 9",
        phase=Phase.LEAVING,
        because="the nursery is lost",
    ),
    row(
        "a warm keeper opens the store",
        MUSTER,
        events.ProcessWarm,
        id=KEEPER,
        pid=7,
        phase=Phase.MUSTERING,
        does=["CancelTimer", "OpenStore"],
        because="is warm",
    ),
    row(
        "a warm worker waits for the others",
        MUSTER,
        events.ProcessWarm,
        id=WORKER,
        pid=7,
        phase=Phase.MUSTERING,
        does=["CancelTimer"],
        because="is warm",
    ),
    row("a worker is born once", TRAIN, events.ProcessWarm, id=WORKER, pid=7, phase=Phase.TRAINING),
    row(
        "a stranger is old news",
        MUSTER,
        events.ProcessWarm,
        id="p99",
        pid=7,
        phase=Phase.MUSTERING,
        because="not known any more",
    ),
    row(
        "a fork that fails is followed by a cold start",
        MUSTER,
        events.ProcessStillborn,
        id=WORKER,
        reason="no memory",
        phase=Phase.MUSTERING,
        does=["CancelTimer", "StartProcess", "SetTimer"],
        because="falling through to a cold start",
    ),
    row(
        "without a keeper rank 0 serves the store",
        MUSTER,
        events.ProcessStillborn,
        id=KEEPER,
        reason="no memory",
        phase=Phase.MUSTERING,
        does=["CancelTimer", "OpenStore", "SetTimer"],
        because="rank 0 serves the store",
    ),
    row(
        "a cold start that fails is a failure of the incarnation",
        COLD,
        events.ProcessStillborn,
        id=first(COLD),
        reason="no memory",
        phase=Phase.MUSTERING,
        does=[
            "CancelTimer",
            "SetTimer",
            "CancelTimer",
            *["OpenStore", "SetTimer", "SetTimer"],
            "Say",
            "StartProcess",
            "SetTimer",
        ],
        because="failed",
    ),
    row(
        "a birth is not failed after it succeeded",
        TRAIN,
        events.ProcessStillborn,
        id=WORKER,
        reason="late",
        phase=Phase.TRAINING,
        because="was born already",
    ),
    row(
        "the death of a worker ends the incarnation",
        STEPPED,
        events.ProcessLost,
        id=STEPPED.rank(0),
        seen_at=1.0,
        sign="mutex",
        exit=KILLED,
        phase=Phase.RELEASING,
        does=["Kill", "SetTimer", "SetTimer", "OpenStore"],
        because="is dead",
    ),
    row(
        "survivors that can hear are asked first",
        STEPPED,
        events.ProcessLost,
        id=STEPPED.rank(0),
        seen_at=1.0,
        sign="mutex",
        exit=KILLED,
        listening=(STEPPED.rank(1),),
        phase=Phase.RELEASING,
        does=["Terminate", "SetTimer", "SetTimer", "SetTimer", "OpenStore"],
        because="failed",
    ),
    row(
        "the last of the dead lets the next incarnation muster",
        REC,
        events.ProcessLost,
        id=REC.rank(1),
        seen_at=1.0,
        sign="mutex",
        exit=KILLED,
        phase=Phase.MUSTERING,
        does=["CancelTimer", "Say", *["StartProcess", "SetTimer"] * 2],
        because="incarnation 1 is dead",
    ),
    row(
        "a second death is no second incident",
        Story(world=3).training().stepped().lose_rank(0),
        events.ProcessLost,
        id=Story(world=3).training().rank(1),
        seen_at=1.0,
        sign="mutex",
        exit=KILLED,
        phase=Phase.RELEASING,
        because="is dead",
    ),
    row(
        "the death of a keeper does not stop training",
        TRAIN,
        events.ProcessLost,
        id=KEEPER,
        seen_at=1.0,
        sign="mutex",
        exit=KILLED,
        phase=Phase.TRAINING,
        does=["Say"],
        because="is dead",
    ),
    row(
        "a store that nobody has joined yet is opened anew",
        REC,
        events.ProcessLost,
        id=KEEPER,
        seen_at=1.0,
        sign="mutex",
        exit=KILLED,
        phase=Phase.RELEASING,
        does=["OpenStore", "SetTimer"],
        because="rank 0 serves the store",
    ),
    row(
        "a crash after the last rank finished changes nothing",
        END,
        events.ProcessLost,
        id=END.rank(0),
        seen_at=1.0,
        sign="mutex",
        exit=SEGFAULT,
        phase=Phase.LEAVING,
        does=["Say"],
        because="is done",
    ),
    row(
        "memory given back is noted",
        TRAIN,
        events.ProcessGone,
        id="p9",
        exit=WELL,
        phase=Phase.TRAINING,
        because="gone",
    ),
    row(
        "a stopped worker is given time",
        STEPPED,
        events.ProcessStopped,
        id=STEPPED.rank(0),
        signal=19,
        phase=Phase.TRAINING,
        does=["SetTimer", "Say"],
        because="was stopped",
    ),
    row(
        "a continued worker is forgiven",
        paused(),
        events.ProcessContinued,
        id=STEPPED.rank(0),
        phase=Phase.TRAINING,
        does=["CancelTimer"],
        because="goes on",
    ),
    row(
        "an exception ends the incarnation but not yet its process",
        STEPPED,
        events.WorkerRaised,
        id=STEPPED.rank(0),
        error=ERROR,
        phase=Phase.RELEASING,
        does=["SetTimer", "Kill", "SetTimer", "SetTimer", "OpenStore"],
        because="failed",
    ),
    row(
        "an exception while stopping is what was asked for",
        STOP,
        events.WorkerRaised,
        id=STOP.rank(0),
        error=ERROR,
        phase=Phase.STOPPING,
    ),
    row(
        "one rank that finishes waits for the others",
        STEPPED,
        events.WorkerEnded,
        id=STEPPED.rank(0),
        code=0,
        phase=Phase.TRAINING,
        because="has finished",
    ),
    row(
        "a script that ends with a code has failed",
        STEPPED,
        events.WorkerEnded,
        id=STEPPED.rank(0),
        code=3,
        phase=Phase.RELEASING,
        does=["SetTimer", "Kill", "SetTimer", "SetTimer", "OpenStore"],
        because="leaving with code 3",
    ),
    row(
        "the last rank that finishes completes the job",
        Story(world=1).training(),
        events.WorkerEnded,
        id=first(Story(world=1).training()),
        code=0,
        phase=Phase.LEAVING,
        does=["SetTimer"],
        because="the job is complete",
    ),
    row(
        "a first step is noted",
        TRAIN,
        events.WorkerStepped,
        id=TRAIN.rank(0),
        script_at=0.0,
        group_at=0.0,
        restored_at=None,
        resumed_from=None,
        basis="fresh",
        phase=Phase.TRAINING,
        because="has made its first step",
    ),
    row(
        "a first step told after the death of who made it closes no incident",
        REC,
        events.WorkerStepped,
        id=REC.rank(0),
        script_at=0.0,
        group_at=0.0,
        restored_at=None,
        resumed_from=None,
        basis="fresh",
        phase=Phase.RELEASING,
        because="has made its first step",
    ),
    row(
        "what the script imports is imported ahead",
        TRAIN,
        events.Learned,
        modules=9,
        phase=Phase.TRAINING,
        does=["CancelTimer", "Preload"],
        because="imports are known",
    ),
    row(
        "it is imported once",
        Story().training().tell(events.Learned, modules=9),
        events.Learned,
        modules=9,
        phase=Phase.TRAINING,
        because="imports are known",
    ),
    row(
        "changed sources are told",
        TRAIN,
        events.SourcesChanged,
        files=("train.py",),
        phase=Phase.TRAINING,
        does=["Say"],
        because="have changed",
    ),
    row("progress is noted in silence", TRAIN, events.Progressed, step=9, basis="fresh", phase=Phase.TRAINING),
    row(
        "an open store and warm processes make an incarnation",
        Story().mustering().warm_all(),
        events.StoreOpen,
        incarnation=1,
        port=1,
        phase=Phase.TRAINING,
        does=["CancelTimer", "Assign", "Assign", "SetTimer"],
        because="has a warm process",
    ),
    row(
        "a store of another incarnation is ignored",
        MUSTER,
        events.StoreOpen,
        incarnation=7,
        port=1,
        phase=Phase.MUSTERING,
    ),
    row("a store is opened once", TRAIN, events.StoreOpen, incarnation=1, port=1, phase=Phase.TRAINING),
    row(
        "a keeper that cannot open the store is replaced by rank 0",
        MUSTER,
        events.StoreFailed,
        incarnation=1,
        reason="in use",
        phase=Phase.MUSTERING,
        does=["CancelTimer", "Kill", "OpenStore", "SetTimer"],
        because="rank 0 serves the store",
    ),
    row(
        "without any store there is no job",
        COLD,
        events.StoreFailed,
        incarnation=1,
        reason="in use",
        phase=Phase.OVER,
        does=["Say", "Kill", "SetTimer", *["CancelTimer"] * 4, "Finish"],
        because="could not be opened",
    ),
    row(
        "a store that fails while stopping is nobody's concern",
        STOP,
        events.StoreFailed,
        incarnation=1,
        reason="in use",
        phase=Phase.STOPPING,
    ),
    row(
        "a cancelled timer does nothing",
        TRAIN,
        events.TimerFired,
        timer="rest",
        phase=Phase.TRAINING,
        because="was cancelled",
    ),
    row(
        "a stop asks the workers and sets a limit",
        STEPPED,
        events.StopAsked,
        signal=15,
        phase=Phase.STOPPING,
        does=["Terminate", "Say", "SetTimer"],
        because="asked to stop by signal 15",
    ),
    row(
        "a stop before training is immediate",
        MUSTER,
        events.StopAsked,
        signal=2,
        phase=Phase.OVER,
        does=["CancelTimer", "Kill", *["CancelTimer"] * 4, "SetTimer", "Finish"],
        because="asked to stop by signal 2",
    ),
    row(
        "asked twice, workers are killed",
        STOP,
        events.StopAsked,
        signal=15,
        phase=Phase.STOPPING,
        does=["Kill", "SetTimer"],
        because="no more waiting",
    ),
    row(
        "asked to stop while leaving, the work still counts",
        END,
        events.StopAsked,
        signal=15,
        phase=Phase.LEAVING,
        does=["Kill", "SetTimer"],
        because="no more waiting",
    ),
]


class Ring(NamedTuple):
    name: str
    given: Story
    timer: str
    phase: Phase
    does: list[str]
    because: str


def ring(name, given, timer, *, phase, does=(), because):
    return Ring(name, given, timer, phase, sorted(does), because)


STUCK = releasing()
HIDDEN_STEPS = Story(spares=1).training()

RINGS = [
    ring(
        "a nursery that does not get warm is lost",
        NURSERY,
        "nursery",
        phase=Phase.WARMING,
        does=["Say", "StartNursery", "SetTimer"],
        because="not warm after 180 s",
    ),
    ring(
        "a fork that hangs is killed and followed by a cold start",
        MUSTER,
        f"birth:{WORKER}",
        phase=Phase.MUSTERING,
        does=["Kill", "StartProcess", "SetTimer"],
        because="not warm after 30 s",
    ),
    ring(
        "a keeper that does not answer is replaced by rank 0",
        MUSTER,
        "store",
        phase=Phase.MUSTERING,
        does=["CancelTimer", "Kill", "OpenStore", "SetTimer"],
        because="not open after 15 s",
    ),
    ring(
        "who was asked and did not go is killed",
        asked_to_leave(),
        "grace",
        phase=Phase.RELEASING,
        does=["Kill"],
        because="the grace is over",
    ),
    ring(
        "exit handlers do not run for ever",
        farewell(),
        "farewell",
        phase=Phase.RELEASING,
        does=["Kill"],
        because="has had its time",
    ),
    ring(
        "a process that SIGKILL does not end is the node's fault",
        STUCK,
        "release",
        phase=Phase.OVER,
        does=["Say", "CloseIncident", "CancelTimer", "Finish"],
        because="cannot be killed",
    ),
    ring(
        "after the rest the next incarnation musters",
        resting(),
        "rest",
        phase=Phase.MUSTERING,
        does=["StartProcess", "SetTimer"] * 2,
        because="musters",
    ),
    ring(
        "a worker stopped for too long is replaced",
        paused(),
        f"stopped:{STEPPED.rank(0)}",
        phase=Phase.RELEASING,
        does=["Kill", "Kill", "SetTimer", "SetTimer", "OpenStore"],
        because="stopped for too long",
    ),
    ring(
        "spares are made even if steps cannot be seen",
        HIDDEN_STEPS,
        "spares",
        phase=Phase.TRAINING,
        does=["StartProcess", "SetTimer"],
        because="time for spares",
    ),
    ring(
        "a job without countable steps has recovered when it runs for a while",
        uncountable_recovery(),
        "settle",
        phase=Phase.TRAINING,
        does=["CloseIncident", "Say"],
        because="steps unknown",
    ),
    ring(
        "who does not leave when asked to stop is killed",
        stopping(),
        "drain",
        phase=Phase.STOPPING,
        does=["Kill", "SetTimer"],
        because="the time to leave is over",
    ),
    ring(
        "who does not leave after finishing is killed",
        Story().leaving(),
        "teardown",
        phase=Phase.LEAVING,
        does=["Kill", "SetTimer"],
        because="the time to leave is over",
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_rule(row):
    kind, fields = row.tell
    decision = job.decide(row.given.state, kind(at=row.given.now + 0.01, **fields))
    assert decision.state.phase is row.phase
    assert sorted(type(action).__name__ for action in decision.actions) == row.does
    assert row.because in decision.reason


@pytest.mark.parametrize("row", RINGS, ids=lambda row: row.name)
def test_timer(row):
    due = row.given.state.timers[row.timer]
    decision = job.decide(row.given.state, events.TimerFired(at=due, timer=row.timer))
    assert row.timer not in decision.state.timers or decision.state.timers[row.timer] > due
    assert decision.state.phase is row.phase
    assert sorted(type(action).__name__ for action in decision.actions) == row.does
    assert row.because in decision.reason


def test_the_tables_have_a_row_for_every_rule():
    assert {row.tell[0] for row in ROWS} == set(job._RULES)
    assert {row.timer.partition(":")[0] for row in RINGS} == set(job._TIMERS)


@pytest.mark.parametrize("kind", list(job._RULES), ids=lambda kind: kind.__name__)
def test_nothing_is_done_after_the_end(kind):
    over = Story().leaving().lose("p2", WELL).lose("p3", WELL).state
    assert over.phase is Phase.OVER
    event = next(row.tell[0](at=99.0, **row.tell[1]) for row in ROWS if row.tell[0] is kind)
    assert job.decide(over, event) == job.Decision(over, (), "the job is over")


# -- stories that take more than one event


def test_a_job_completes_when_every_rank_has_finished_and_left():
    story = Story().leaving().lose("p2", WELL)
    assert story.state.phase is Phase.LEAVING
    story.lose("p3", WELL)
    assert (story.state.status, story.state.exit_code) == (Status.COMPLETED, 0)
    assert story.actions(actions.Finish) == [actions.Finish(code=0)]


def test_workers_get_ranks_the_store_and_the_number_of_restarts():
    story = Story().training().stepped().lose_rank(0).bury().warm_all().opened(port=4711)
    first, second = story.actions(actions.Assign)
    assert [first.rank, second.rank] == [0, 1]
    assert {(a.incarnation, a.restarts, a.port, a.agent_store) for a in (first, second)} == {(2, 1, 4711, True)}


def test_only_rank_0_of_the_first_incarnation_learns():
    story = Story().training()
    assert [action.learn for action in story.actions(actions.Assign)] == [True, False]
    story.tell(events.Learned, modules=9).stepped().lose_rank(0).bury().warm_all().opened()
    assert [action.learn for action in story.actions(actions.Assign)] == [False, False]


def test_a_spare_takes_the_place_of_the_dead():
    story = Story(spares=1).training().tell(events.Learned, modules=9).warm_all().stepped()
    spare = story.ids(Purpose.SPARE)[0]
    story.lose_rank(1).bury()
    assert story.state.processes[spare].rank == 0
    assert story.count(actions.StartProcess) == 1


def test_processes_that_have_run_nothing_serve_the_next_incarnation():
    story = cold(world=3).submitted()
    waiting = story.workers()[1].id
    story.tell(events.ProcessWarm, id=waiting, pid=7)
    story.tell(events.ProcessStillborn, id=story.rank(0), reason="no memory")
    assert story.state.incarnation == 2
    assert story.state.processes[waiting].incarnation == 2
    assert story.state.processes[waiting].stage is Stage.WARM


def test_a_cold_start_that_dies_while_it_waits_costs_a_restart():
    story = cold().submitted()
    story.tell(events.ProcessWarm, id=story.rank(0), pid=7).lose_rank(0)
    assert (story.state.incarnation, story.state.budget.restarts) == (2, 1)


def test_three_lost_nurseries_are_enough():
    story = Story().submitted()
    for _ in range(3):
        story.tell(events.NurseryLost, reason="signal 9")
    assert story.state.nursery.stage is NurseryStage.GIVEN_UP
    assert story.state.phase is Phase.MUSTERING
    assert {action.origin for action in story.actions(actions.StartProcess)} == {Origin.COLD}


def test_three_failed_spares_are_enough_until_progress_is_made():
    story = Story(spares=1).training().tell(events.Learned, modules=9).stepped()
    for _ in range(3):
        story.tell(events.ProcessStillborn, id=story.ids(Purpose.SPARE)[0], reason="no memory")
    assert story.ids(Purpose.SPARE) == []
    story.tell(events.Progressed, step=25, basis="fresh")
    assert len(story.ids(Purpose.SPARE)) == 1


def test_spares_of_an_older_generation_go_when_the_new_ones_are_ready():
    story = Story(spares=1).training().tell(events.Learned, modules=9).warm_all()
    old = story.ids(Purpose.SPARE)
    story.tell(events.NurseryWarm, generation=2)
    assert story.count(actions.Kill) == 0
    story.warm_all()
    assert story.actions(actions.Kill) == [actions.Kill(ids=tuple(old))]


def test_a_failure_while_resting_starts_another_rest_and_no_two():
    story = cold().submitted().warm_all().opened().stepped().lose_rank(0).bury().warm_all().opened()
    story.lose_rank(0, chance=0.0).bury()
    assert story.state.phase is Phase.RESTING
    assert list(story.state.timers).count("rest") == 1


def test_an_exception_told_after_the_death_is_part_of_the_same_casualty():
    story = Story().training().stepped().lose_rank(0, Exit(code=1)).raised(0)
    casualties = story.state.incidents["1"].casualties
    assert len(casualties) == 1
    assert casualties[0].raised == ERROR


def test_deaths_seen_before_our_signal_are_not_our_doing():
    story = Story().training().stepped()
    story.raised(0)
    story.lose_rank(1, KILLED, seen_at=story.now - 0.01).lose_rank(0, Exit(code=1))
    assert story.state.incidents["1"].verdict.symptom == "crash"
    assert story.state.incidents["1"].verdict.suspect == 1


def test_deaths_seen_after_our_signal_are():
    story = Story().training().stepped()
    story.raised(0)
    story.lose_rank(1, KILLED, seen_at=story.now + 0.01).lose_rank(0, Exit(code=1))
    assert story.state.incidents["1"].verdict.symptom == "exception"


def test_each_attempt_is_judged_by_its_own_casualties():
    story = Story().training().stepped().lose_rank(0).bury().warm_all().opened()
    story.raised(0).lose_rank(0, Exit(code=1)).bury()
    assert story.state.budget.last_signature == "ValueError: no such file"
    story.ring("rest").warm_all().opened().raised(0).lose_rank(0, Exit(code=1)).bury()
    assert (story.state.status, story.state.exit_code) == (Status.FAILED, 1)


def test_who_finishes_when_asked_and_does_not_leave_is_killed():
    story = asked_to_leave()
    survivor = story.rank(1)
    story.tell(events.WorkerEnded, id=survivor, code=0).ring("grace")
    assert story.actions(actions.Kill) == [actions.Kill(ids=(survivor,))]


def test_the_release_waits_for_as_long_a_grace_as_the_user_gave():
    story = Story(limits=Limits(grace_seconds=60.0)).training().stepped()
    story.lose_rank(0, listening=(story.rank(1),))
    assert story.state.timers["release"] > story.state.timers["grace"]


def test_what_fails_for_want_of_a_store_is_not_the_users_fault():
    story = Story().training()
    story.lose("p1").raised(0).lose_rank(0, Exit(code=1)).bury()
    assert story.state.incidents["1"].verdict.symptom == "store lost"
    assert story.state.incarnation == 2


def test_deaths_while_leaving_open_no_incident():
    story = Story().leaving().tell(events.StopAsked, signal=15).bury()
    assert story.state.incidents == {}
    assert story.state.status is Status.COMPLETED


def test_a_stopped_worker_that_is_killed_while_stopping_opens_no_incident():
    story = stopping()
    story.tell(events.ProcessStopped, id=story.rank(0), signal=19)
    assert story.state.incidents == {}


def test_a_stop_ends_as_stopped_with_the_signals_code():
    story = stopping().lose_rank(0, Exit(signal=15)).lose_rank(1, Exit(signal=15))
    assert (story.state.status, story.state.exit_code) == (Status.STOPPED, 143)


def test_a_keyboard_interrupt_is_passed_on_as_sigterm():
    story = Story().training().tell(events.StopAsked, signal=2)
    assert [action.signal for action in story.actions(actions.Terminate)] == [15]


def test_a_stop_before_submission_ends_a_job_that_never_was():
    story = Story().tell(events.StopAsked, signal=15)
    assert (story.state.phase, story.state.status) == (Phase.OVER, Status.STOPPED)


def test_the_user_gets_the_exit_code_of_a_failure_that_will_not_be_retried():
    story = failing().bury()
    assert (story.state.status, story.state.exit_code) == (Status.FAILED, 75)


def test_decisions_are_functions_of_state_and_event():
    state = JobState()
    event = events.Submitted(at=0.0, terms=Story().terms)
    assert job.decide(state, event) == job.decide(state, event)
    assert state == JobState()
