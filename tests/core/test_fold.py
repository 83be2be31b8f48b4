"""What is recorded of a decision, and that it adds up."""

import msgspec

from holdfast.core import fold
from holdfast.model.state import JobState, Phase, Process, Purpose, Status
from tests.core.story import Story


def test_nothing_changed_is_recorded_as_nothing():
    assert fold.delta(JobState(), JobState()) == {}


def test_only_the_changed_key_of_a_table_is_recorded():
    before = Story(world=4).training().state
    one = before.processes["p3"]
    after = msgspec.structs.replace(before, processes=before.processes | {"p3": msgspec.structs.replace(one, pid=1)})
    assert list(fold.delta(before, after)) == ["processes"]
    assert list(fold.delta(before, after)["processes"]) == ["p3"]


def test_a_key_that_went_is_recorded_as_null():
    before = JobState(timers={"rest": 1.0, "store": 2.0})
    changes = fold.delta(before, JobState(timers={"store": 2.0}))
    assert changes == {"timers": {"rest": None}}
    assert fold.apply(before, changes) == JobState(timers={"store": 2.0})


def test_records_are_plain_data():
    changes = fold.delta(JobState(), JobState(status=Status.RUNNING, phase=Phase.TRAINING, best_step=3))
    assert changes == {"status": "RUNNING", "phase": "training", "best_step": 3}
    assert fold.apply(JobState(), changes).phase is Phase.TRAINING


def test_what_became_nothing_is_applied():
    before = JobState(best_step=3)
    assert fold.apply(before, fold.delta(before, JobState())).best_step is None


def test_tables_keep_their_order():
    spares = {id: Process(id=id, purpose=Purpose.SPARE, origin="fork") for id in ("p1", "p2", "p3")}
    before = JobState(processes=spares)
    after = JobState(processes={**spares, "p1": Process(id="p1", purpose=Purpose.SPARE, origin="cold")})
    assert list(fold.apply(before, fold.delta(before, after)).processes) == ["p1", "p2", "p3"]


def test_a_whole_journal_read_from_disk_folds_to_the_state():
    story, journal = Story(spares=1), []
    told = story.tell

    def tell(kind, after=0.001, **fields):
        before = story.state
        told(kind, after, **fields)
        journal.append(msgspec.json.encode(fold.delta(before, story.state)))
        return story

    story.tell = tell
    story.training().stepped().lose_rank(0).bury().warm_all().opened().stepped(step=9)
    assert fold.fold(map(msgspec.json.decode, journal)) == story.state
    assert (
        fold.fold(map(msgspec.json.decode, journal[9:]), fold.fold(map(msgspec.json.decode, journal[:9])))
        == story.state
    )
