"""Where the time went: exact for stories whose answer is known, and a partition of the wall time for any journal."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.adapters.sqlite_journal import SqliteJournal, read_entries
from holdfast.core.goodput import Bucket, account
from holdfast.core.record import Record, Snapshot, replay
from holdfast.model import events
from holdfast.model.ids import Step
from holdfast.model.state import JobState, Phase
from holdfast.testing import schedules
from holdfast.testing.world import World
from tests.record.stories import Story, recovered_once, spec


def _spent(result):
    return {name: pytest.approx(seconds) for name, seconds in result.buckets.items() if seconds}


def _whole(result):
    assert all(seconds >= 0 for seconds in result.buckets.values())
    assert math.isclose(sum(result.buckets.values()), result.wall_seconds, abs_tol=1e-6)


def test_one_recovery_to_the_millisecond():
    result = account(recovered_once().records)
    assert _spent(result) == {
        "startup": 3.0,
        "productive": 4.5 + 5.0,
        "lost": 3.75,  # from step 10, half a second after step 9, to the first sign
        "detect": 0.25,
        "release": 0.125,
        "muster": 0.5,
        "regroup": 0.25,
        "restore": 0.25,
        "first_step": 0.5,
        "teardown": 0.5,
    }
    assert result.wall_seconds == pytest.approx(18.625)
    assert result.goodput == pytest.approx(9.5 / 18.625)
    assert (result.steps, result.steps_lost, result.incidents) == (30, 7, 1)
    assert [(life.from_step, life.to_step, life.lost_steps) for life in result.lives] == [(0, 17, 7), (10, 30, 0)]
    assert result.notes == ()


def test_the_same_from_disk(tmp_path):
    journal = SqliteJournal.create(tmp_path / "j.db", spec(), created=1.0)
    told = recovered_once(journal)
    journal.close()
    assert account(read_entries(tmp_path / "j.db")) == account(recovered_once().records)
    assert told.seq


def test_a_job_whose_steps_nobody_sees():
    story = Story().wait(2.0).muster().wait(5.0).look(None).wait(5.0).end().wait(0.5).leave()
    result = account(story.records)
    assert _spent(result) == {"startup": 2.0, "running": 10.0, "teardown": 0.5}
    assert result.goodput is None
    assert result.steps_lost is None
    assert "no steps were seen" in result.notes[0]


def test_an_unknown_resumption_makes_what_was_before_unknown():
    story = Story().wait(1.0).muster().wait(1.0).first_steps(0).wait(3.0).look(9).lose(0, step=9).lose(1)
    story.wait(1.0).muster().wait(1.0).first_steps(None).wait(4.0).look(20).end().leave()
    result = account(story.records)
    assert _spent(result) == {
        "startup": 2.0,
        "running": 3.0,
        "muster": 1.0,
        "first_step": 1.0,
        "productive": 4.0,
    }
    assert result.goodput is None
    assert result.steps_lost is None


def test_a_worker_that_was_stopped_is_detection_time():
    story = Story().wait(1.0).muster().wait(1.0).first_steps(0).wait(3.0).look(3)
    first = story.workers()[0]
    story.feed(events.ProcessStopped(at=story.at, id=first, signal=19)).wait(10.0)
    story.feed(events.TimerFired(at=story.at, timer=f"stopped:{first}"))
    assert story.state.phase is Phase.RELEASING
    result = account(story.records)
    assert _spent(result) == {"startup": 2.0, "productive": 3.0, "detect": 10.0}


def test_stopping_by_the_user():
    story = Story().wait(1.0).muster().wait(1.0).first_steps(0).wait(3.0).look(3)
    story.feed(events.StopAsked(at=story.at, signal=15)).wait(2.0).leave()
    assert _spent(account(story.records)) == {"startup": 2.0, "productive": 3.0, "drain": 2.0}


def test_a_job_under_way_is_counted_to_now():
    story = Story().wait(1.0).muster().wait(1.0).first_steps(0).wait(3.0).look(3)
    result = account(story.records, until=story.at + 7.0)
    assert _spent(result) == {"startup": 2.0, "productive": 10.0}
    assert "not over" in result.notes[-1]


def test_a_failure_before_the_first_step_is_no_startup():
    story = Story().wait(1.0).muster().wait(2.0).lose(0).lose(1).wait(1.0).muster().wait(1.0).first_steps(0)
    story.wait(1.0).look(5)
    result = account(story.records)
    assert _spent(result) == {"startup": 3.0, "muster": 1.0, "first_step": 1.0, "productive": 1.0}


def test_two_resumptions_from_the_same_checkpoint_lose_both():
    story = Story().wait(1.0).muster().first_steps(0)
    for step in (41, 61):  # with progress in between, so that nothing rests
        story.wait(4.0).look(step).lose(0, step=step).lose(1).muster().first_steps(21)
    story.wait(1.0).look(40)
    result = account(story.records)
    assert result.steps_lost == 20 + 40
    assert result.buckets["lost"] == pytest.approx(2.0 + 4.0)  # steps 22 to 41 of 2 to 41, then all
    _whole(result)


def test_holes_are_unrecorded_until_a_snapshot():
    told = recovered_once()
    before, after = told.records[:5], told.records[12:]
    state_there = _state_after(told.records[:12])
    snapshot = Snapshot(seq=12, at=told.records[11].at, wall=0.0, state=state_there)
    result = account([*before, snapshot, *after])
    _whole(result)
    assert result.wall_seconds == pytest.approx(18.625)
    assert result.buckets[Bucket.UNRECORDED] == pytest.approx(told.records[11].at - told.records[4].at)
    assert result.goodput is None
    without = account([*before, *after])
    _whole(without)
    assert without.buckets[Bucket.UNRECORDED] == pytest.approx(told.records[-1].at - told.records[4].at)


def test_a_journal_whose_beginning_was_trimmed():
    told = recovered_once()
    snapshot = Snapshot(seq=12, at=told.records[11].at, wall=0.0, state=_state_after(told.records[:12]))
    result = account([snapshot, *told.records[12:]])
    _whole(result)
    assert result.wall_seconds == pytest.approx(18.625)


def test_nothing_at_all():
    result = account([])
    assert result.wall_seconds == 0
    assert result.goodput is None


def _state_after(records):
    return replay(records).state


# -- properties


_EVENTS = st.one_of(
    st.builds(events.Progressed, at=st.just(0.0), step=st.none() | st.integers(0, 60).map(Step), basis=st.just("x")),
    st.builds(
        events.WorkerStepped,
        at=st.just(0.0),
        id=st.sampled_from(["p1", "p2"]),
        script_at=st.just(0.0),
        group_at=st.none() | st.floats(0, 500),
        restored_at=st.none() | st.floats(0, 500),
        resumed_from=st.none() | st.integers(0, 60).map(Step),
        basis=st.just("x"),
    ),
    st.builds(events.ProcessStopped, at=st.just(0.0), id=st.sampled_from(["p1", "p2"]), signal=st.just(19)),
)
_CASUALTIES = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.sampled_from(["p1", "p2"]),
            "rank": st.just(0),
            "incarnation": st.integers(1, 3),
            "at": st.floats(0, 500),
            "sign": st.sampled_from(["", "stop"]),
        }
    ),
    max_size=2,
)
_INCIDENTS = st.dictionaries(
    st.sampled_from(["1", "2"]),
    st.fixed_dictionaries(
        {"number": st.just(1), "incarnation": st.just(1), "opened_at": st.floats(0, 500), "casualties": _CASUALTIES}
    ),
    max_size=2,
)
_DELTAS = st.fixed_dictionaries(
    {},
    optional={
        "phase": st.sampled_from([phase.value for phase in Phase]),
        "incarnation": st.integers(0, 4),
        "open_incident": st.integers(0, 2),
        "incidents": _INCIDENTS,
        "training_at": st.floats(0, 500),
        "started_at": st.floats(0, 500),
    },
)


@st.composite
def _journals(draw):
    """Anything that could stand in a journal, sensible or not: clocks that jump back, holes, snapshots in between."""
    entries, seq, at = [], 0, draw(st.floats(0, 100))
    for _ in range(draw(st.integers(0, 25))):
        seq += draw(st.sampled_from([1, 1, 1, 1, 1, 3]))
        at += draw(st.floats(-5, 20))
        if draw(st.integers(0, 15)) == 0:
            entries.append(Snapshot(seq, at, 0.0, JobState(started_at=draw(st.floats(0, 500)))))
        else:
            entries.append(Record(seq, at, 0.0, msgspec.to_builtins(draw(_EVENTS)), draw(_DELTAS)))
    return entries


@settings(max_examples=300, deadline=None)
@given(_journals(), st.none() | st.floats(0, 1000))
def test_any_journal_is_divided_without_rest(entries, until):
    _whole(account(entries, until))


@pytest.mark.parametrize("seed", range(60))
def test_simulated_jobs_are_divided_without_rest(seed):
    records = []

    def trace(event, changes, actions):
        records.append(Record(len(records) + 1, event.at, 0.0, msgspec.to_builtins(event), changes))

    world = World(schedules.draw(seed), trace)
    world.run()
    result = account(records)
    _whole(result)
    assert result.buckets[Bucket.UNRECORDED] == 0
    assert result.wall_seconds == pytest.approx(records[-1].at - records[0].at)
    if result.goodput is not None:
        assert 0 <= result.goodput <= 1
