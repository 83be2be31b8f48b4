"""Schedules that once failed are played before anything new is tried."""

import os

import pytest

from holdfast.testing import corpus, invariants, schedules
from holdfast.testing.simulate import play

FILE = os.path.join(os.path.dirname(__file__), "corpus.json")
KNOWN = corpus.load(FILE)


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: f"{known.failed}-{known.schedule.seed}")
def test_what_once_failed_holds(known):
    assert play(known.schedule).violation is None


def test_the_corpus_is_of_this_simulator():
    assert {known.failed for known in KNOWN} <= set(invariants.NAMES)
    assert {fault.kind for known in KNOWN for fault in known.schedule.faults} <= set(schedules.KINDS)


def test_an_entry_reads_back(tmp_path):
    file = tmp_path / "corpus.json"
    file.write_text("[" + corpus.entry(KNOWN[0]) + "]")
    assert corpus.load(str(file)) == [KNOWN[0]]
