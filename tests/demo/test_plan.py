"""The plan of kills: known from its seed, and never one that cannot be carried out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.demo import plan


def test_the_usual_plan_has_every_kind_of_kill():
    faults = plan.make(seed=1, ranks=4, steps=400)
    assert sorted(fault.kind for fault in faults) == ["nursery", "spare", "worker", "worker", "worker"]
    hit = [fault.ranks for fault in faults if fault.hurts_workers]
    assert (0,) in hit
    assert any(len(ranks) == 1 and ranks != (0,) for ranks in hit)
    assert any(len(ranks) == 2 for ranks in hit)


def test_a_worker_is_killed_after_the_nursery():
    for seed in range(50):
        faults = plan.make(seed=seed, ranks=4, steps=400)
        assert [fault.kind for fault in faults][3:] in (["nursery", "worker"], ["nursery", "spare"])


@given(seed=st.integers(0, 2**31), ranks=st.integers(1, 9), steps=st.integers(60, 5000), kills=st.integers(0, 20))
def test_any_plan(seed, ranks, steps, kills):
    faults = plan.make(seed=seed, ranks=ranks, steps=steps, kills=kills)
    assert faults == plan.make(seed=seed, ranks=ranks, steps=steps, kills=kills)
    assert len(faults) == kills
    assert [fault.number for fault in faults] == list(range(1, kills + 1))
    at = [fault.step for fault in faults]
    assert at == sorted(at)
    assert all(0 < step < steps for step in at)
    for fault in faults:
        assert bool(fault.ranks) == fault.hurts_workers
        assert all(0 <= rank < ranks for rank in fault.ranks)
        assert len(set(fault.ranks)) == len(fault.ranks)
