"""The arithmetic between recorded measurements and the table, on numbers small enough to check by hand."""

import pytest

from harness import report
from harness.rows import QUICK, Size, every_row, rung_of
from harness.stats import spread
from harness.targets import FAIL, NOT_BINDING, NOT_MEASURED, PASS, every_target, first_of, pairs, seconds_of

MACHINE = {"id": "m", "cores": 2, "cpu": "x", "memory_gb": 24, "kernel": "6", "python": "3", "torch": "2", "cuda": ""}


def kill(seconds, *, first=False, **more):
    return {"seconds": seconds, "first": first, **more}


def row(*sessions, fresh=False, **parameters):
    parameters = {"fresh": fresh, "cap_seconds": 30.0, **parameters}
    moment = {"load": 0.1, "background": 0.0, "at": "2026-11-19T00:00:00Z"}
    return {"key": "k", "parameters": parameters, "sessions": {str(i): {**moment, **s} for i, s in enumerate(sessions)}}


def kills(*made, **more):
    return row({"kills": list(made)}, **more)


def verdicts(rows):
    return {target.what: target for target in every_target(rows)}


def test_spread_is_linear_between_neighbours_and_leaves_failures_out():
    found = spread([None, *range(11)])
    assert (found.count, found.p10, found.median, found.p90, found.low, found.high) == (11, 1, 5, 9, 0, 10)
    assert spread([3.0]).median == spread([3.0]).p90 == 3.0
    assert spread([1.0, 2.0]).median == 1.5
    assert spread([None]) is None


def test_failures_are_counted_beside_the_median_and_never_in_it():
    rows = {"holdfast-2": kills(kill(0.2, first=True), kill(0.1), kill(None, why="lost"), kill(0.1))}
    assert seconds_of(rows["holdfast-2"]).median == 0.1
    assert first_of(rows["holdfast-2"]).median == 0.2
    failures = verdicts(rows)["failed recoveries, all rows of Holdfast"]
    assert (failures.measured, failures.verdict) == ("1 in 4", FAIL)


def test_sessions_are_read_in_order_of_their_number():
    many = row(*({"kills": [kill(i / 10, first=True)]} for i in range(11)))
    assert seconds_of(many).count == 11
    shuffled = {**many, "sessions": dict(sorted(many["sessions"].items()))}  # "10" before "2"
    assert [s["kills"][0]["seconds"] for s in report.sessions_of(shuffled)] == [i / 10 for i in range(11)]


def test_hundred_kills_without_a_failure_pass_and_fewer_are_not_enough():
    name = "failed recoveries, all rows of Holdfast"
    assert verdicts({"holdfast-2": kills(*[kill(0.1)] * 99)})[name].verdict == NOT_MEASURED
    assert verdicts({"holdfast-2": kills(*[kill(0.1)] * 100)})[name].verdict == PASS


@pytest.mark.parametrize(
    ("ours", "floor", "verdict"),
    [(0.15, None, PASS), (0.17, 0.15, FAIL), (0.17, None, FAIL), (0.17, 0.165, NOT_BINDING), (0.15, 0.165, PASS)],
)
def test_absolute_limit_binds_where_the_bare_loop_reaches_it(ours, floor, verdict):
    rows = {"holdfast-2": kills(kill(ours))}
    if floor is not None:
        rows["bare-2"] = kills(kill(floor))
    assert verdicts(rows)["recovery, 2 workers: median"].verdict == verdict


def test_comparison_is_with_torchruns_best_setting_of_the_same_size():
    rows = {
        "holdfast-2": kills(kill(0.1)),
        "torchrun-default-2": kills(kill(6.0), fresh=True),
        "torchrun-unshared-2": kills(kill(5.0), fresh=True),
        "torchrun-fork-2": kills(kill(3.6), kill(0.4), kill(0.4)),
        "torchrun-fork-4": kills(kill(0.01)),
        "torchrun-fork-unshared-2-ballast": kills(kill(0.01)),
    }
    found = verdicts(rows)
    best = found["recovery, 2 workers: torchrun's best setting / Holdfast"]
    fresh = found["recovery, 2 workers: torchrun's best fresh / Holdfast"]
    assert (best.measured, best.verdict) == ("4.0 x (torchrun-fork-2)", PASS)
    assert (fresh.measured, fresh.verdict) == ("50.0 x (torchrun-unshared-2)", PASS)


def test_torchrun_that_never_recovers_counts_with_the_cap():
    rows = {"holdfast-4": kills(kill(0.2)), "torchrun-default-4": kills(kill(None, why="no"), fresh=True)}
    found = verdicts(rows)["recovery, 4 workers: torchrun's best fresh / Holdfast"]
    assert (found.measured, found.verdict) == ("> 150.0 x: none recovered", PASS)


def test_detection_is_of_the_rows_it_names():
    rows = {
        "holdfast-2": kills(kill(0.1, seen_ms=0.4, opened_ms=2.0)),
        "holdfast-2-ballast": kills(kill(0.1, seen_ms=110.0, opened_ms=111.0)),
    }
    found = verdicts(rows)
    assert found["kill to known, holding little: median"].verdict == PASS
    assert found["kill to incident opened, with ballast: median"].verdict == FAIL


def test_ballast_is_compared_with_the_same_row_without():
    rows = {"holdfast-2-first": kills(kill(0.15, first=True)), "holdfast-2-ballast": kills(kill(0.17, first=True))}
    assert verdicts(rows)["ballast: first failures with it - without it"].verdict == PASS


def test_pairs_go_session_by_session_and_skip_what_failed():
    def session(seconds, cpu=0.0):
        return {"seconds": seconds, "whole_seconds": 1.0, "worker_cpu_us": cpu, "launcher_cpu_us": 10.0}

    rows = {
        "steady-holdfast": row(session(10.0, 300.0), session(None), session(12.0, 500.0), steps=[50, 400]),
        "steady-torchrun-default": row(session(10.0, 100.0), session(1.0), session(10.0, 100.0), steps=[50, 400]),
    }
    assert pairs(rows, lambda ours, theirs: ours["seconds"] / theirs["seconds"]) == [1.0, 1.2]
    found = verdicts(rows)
    assert found["no fault: steps, Holdfast / torchrun, median of pairs"].verdict == FAIL
    assert found["no fault: added CPU per rank and step, launcher included"].measured == "300 us"


def test_nothing_measured_is_said_of_everything():
    assert {target.verdict for target in every_target({})} == {NOT_MEASURED}


def test_bare_loop_takes_the_rung_that_holdfast_took():
    assert rung_of(kills(kill(0.1, rung={"spares": 2, "forks": 0}))) == "spare"
    assert rung_of(kills(kill(0.1, rung={"spares": 0, "forks": 2}), kill(0.1, rung=None))) == "fork"
    assert rung_of({}) == "spare"


def test_table_has_a_line_for_every_planned_row_measured_or_not():
    planned = [one.described() for one in every_row(Size(), 1)]
    data = {
        "machine": MACHINE,
        "code": {"commit": "c" * 40, "digest": "d"},
        "planned": planned,
        "why_not": {"gpu-holdfast-fork": "no GPU here"},
        "rows": {
            "holdfast-2": kills(kill(0.1, first=True, seen_ms=0.4), kill(0.12), kill(None, why="lost")),
            "imports": row({"help_ms": [90.0], "python_ms": [15.0], "light": True, "why": ""}),
            "start-holdfast": row({"seconds": 6.0}),
            "memory-holdfast-2": row({"processes": [{"role": "nursery", "title": "n", "rss": 600.0, "pss": 300.0}]}),
            "steady-holdfast": row({"seconds": None}, steps=[50, 400]),
        },
    }
    lines = {line.what: line for line in report.lines(data)}
    assert all(any(what.startswith(one["title"]) for what in lines) for one in planned)
    found = lines["Holdfast, 2 workers"]
    assert (found.found.count, found.failed) == (2, 1)
    assert "first 0.100 (worst 0.100 of 1)" in found.remarks and "1 x lost" in found.remarks
    assert lines["Holdfast, 2 workers, one GPU"].remarks == "no GPU here"
    for shown in (report.text(data), report.markdown(data)):
        assert "not measured" in shown and "0.110" in shown and "2 cores" in shown


@pytest.mark.parametrize("size", [Size(), QUICK])
def test_rows_of_a_group_stand_together_so_that_they_can_take_turns(size):
    groups = [one.group for one in every_row(size, 1)]
    assert len(set(groups)) == sum(a != b for a, b in zip(groups, [None, *groups], strict=False))
