"""Reading what a run writes while it writes it."""

from __future__ import annotations

from holdfast.demo.traces import Trace
from tests.demo.story import Told, calm, hurt


def test_nothing_yet(tmp_path):
    trace = Trace(str(tmp_path), 2)
    assert not trace.poll()
    assert (trace.newest_step(), trace.is_whole(0), trace.committed()) == (0, False, {})


def test_a_line_counts_once_it_is_whole(tmp_path):
    path = tmp_path / "trace-0"
    path.write_text("begin 7 0 1")
    trace = Trace(str(tmp_path), 1)
    trace.poll()
    assert trace.begun == []
    with open(path, "a") as file:
        file.write("2\nstep 1 0x1p0 3,4 0 2")
    trace.poll()
    assert [(begin.pid, begin.at_ns) for begin in trace.begun] == [(7, 12)]
    assert trace.newest_step() == 0
    with open(path, "a") as file:
        file.write("0\n")
    assert trace.poll()
    assert trace.steps[0].samples == (3, 4)
    assert not trace.poll()


def test_a_life_is_whole_when_its_last_rank_has_stepped(tmp_path):
    told = Told(tmp_path)
    told.begin()
    told.step(0, 1)
    trace = told.trace()
    assert not trace.is_whole(0)
    told.now += 5
    told.step(1, 1)
    trace.poll()
    assert trace.whole_at(0) == told.now


def test_what_was_made_again_replaces_what_was_thrown_away(tmp_path):
    trace = hurt(tmp_path).trace()
    assert trace.life == 1
    assert trace.resumed_from(1) == 10
    assert trace.newest_step(0) == 13
    assert trace.whole_after(0) == 1
    assert trace.whole_after(1) is None
    committed = trace.committed()
    assert [committed[step, 0].life for step in (10, 11, 13, 14)] == [0, 1, 1, 1]
    assert len(committed) == 40


def test_a_recycled_pid_belongs_to_whoever_had_it_last(tmp_path):
    told = Told(tmp_path, ranks=1)
    told.write(0, "begin", 7, 0, 1)
    told.write(0, "begin", 7, 3, 2)
    assert told.trace().life_of(7) == 3


def test_the_end(tmp_path):
    trace = calm(tmp_path)
    assert trace.reached_at(20) == max(step.at_ns for step in trace.steps)
    assert trace.reached_at(21) is None
