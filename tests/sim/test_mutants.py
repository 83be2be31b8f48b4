"""An invariant that nothing can break proves nothing: each has a broken core that trips it."""

import itertools

import pytest

from holdfast.testing import invariants, mutants
from holdfast.testing.schedules import draw
from holdfast.testing.shrink import shrink
from holdfast.testing.simulate import explain, play

SEEDS = 1000


def trips(mutant, schedule):
    violation = play(schedule).violation
    return violation is not None and violation.invariant == mutant.trips


def first_trip(mutant):
    return next((schedule for schedule in map(draw, range(SEEDS)) if trips(mutant, schedule)), None)


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_the_mutant_is_noticed_and_the_sound_core_is_not(mutant):
    with mutant.planted():
        schedule = first_trip(mutant)
    assert schedule is not None
    assert play(schedule).violation is None


def test_every_invariant_has_a_mutant():
    assert {mutant.trips for mutant in mutants.MUTANTS} == set(invariants.NAMES)


def test_a_failure_is_shrunk_and_told_with_its_seed():
    mutant = next(mutant for mutant in mutants.MUTANTS if mutant.trips == "one_incarnation_executes")
    with mutant.planted():
        schedule = first_trip(mutant)
        small = shrink(schedule, lambda fewer: trips(mutant, fewer))
        told = explain(schedule, play(schedule).violation)
        assert trips(mutant, small)
        for index in range(len(small.faults)):
            fewer = small.faults[:index] + small.faults[index + 1 :]
            assert not trips(mutant, type(small)(small.seed, small.terms, small.script, fewer))
    assert len(small.faults) < len(schedule.faults)
    assert f"seed {schedule.seed}: one_incarnation_executes" in told
    assert f'"seed":{schedule.seed}' in told


def test_mutants_leave_nothing_behind():
    owners = [(mutant.owner, mutant.attribute) for mutant in mutants.MUTANTS]
    before = [owner.__dict__[attribute] for owner, attribute in owners]
    for mutant in itertools.islice(mutants.MUTANTS, 5):
        with pytest.raises(RuntimeError), mutant.planted():
            raise RuntimeError
    assert [owner.__dict__[attribute] for owner, attribute in owners] == before
