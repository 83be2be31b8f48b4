"""Ten thousand random schedules of the real core. What they amount to is asserted; how fast they run is not."""

import os

import pytest

from holdfast.testing import schedules
from holdfast.testing.faults import FAULTS
from holdfast.testing.simulate import ACTIONS, NO_FAULT, main, survey

SCHEDULES = 10_000


@pytest.fixture(scope="module")
def found():
    result = survey(range(SCHEDULES), jobs=min(2, os.cpu_count() or 1))
    print(f"\n{result}")
    return result


def test_no_invariant_is_violated(found):
    assert found.schedules == SCHEDULES
    assert not found.failed, "\n".join(found.explained())


def test_schedules_are_no_toys(found):
    assert found.events_median >= 30
    assert found.faults_median >= 2
    assert found.recovery_spread >= 0.5, "the median schedule has a fault during recovery"


def test_every_fault_strikes_and_every_action_is_decided_under_fire(found):
    assert set(FAULTS) == set(schedules.KINDS)
    assert {kind for kind, count in found.kinds.items() if count} == set(schedules.KINDS)
    under_fire = {action for fault, action in found.covered if fault != NO_FAULT}
    assert under_fire == set(ACTIONS)


def test_nearly_all_pairs_of_fault_and_action_are_covered(found):
    possible = (len(schedules.KINDS) + 1) * len(ACTIONS)
    assert len(found.covered) >= 0.97 * possible


def test_jobs_end_in_every_way(found):
    assert min(found.endings[ending] for ending in ("COMPLETED", "FAILED", "STOPPED")) >= SCHEDULES / 20


def test_the_command_prints_what_was_covered(capsys):
    corpus = os.path.join(os.path.dirname(__file__), "corpus.json")
    assert main(["--schedules", "20", "--seed", "5", "--corpus", corpus]) == 0
    printed = capsys.readouterr().out
    assert "schedules that once failed: 0 fail" in printed
    assert "20 schedules" in printed
    assert all(name in printed for name in (*ACTIONS, *schedules.KINDS))
