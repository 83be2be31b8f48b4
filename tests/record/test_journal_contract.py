"""What every journal must do: the fake and the real one, the same suite."""

from __future__ import annotations

import pytest
from msgspec.json import encode

from holdfast.adapters.sqlite_journal import SqliteJournal
from holdfast.core.record import replay
from holdfast.ports.journal import MemoryJournal
from tests.record.stories import Story, recovered_once, spec


@pytest.fixture(params=["memory", "wal", "nfs"])
def journal(request, tmp_path):
    if request.param == "memory":
        made = MemoryJournal()
    else:
        magic = 0x6969 if request.param == "nfs" else 0xEF53
        made = SqliteJournal.create(tmp_path / "journal.db", spec(), created=1.0, magic=magic)
    yield made
    made.close()


def test_records_come_back_as_they_were(journal):
    told = recovered_once(journal)
    fake = recovered_once()
    assert list(map(encode, told.records)) == list(map(encode, fake.records))  # a tuple is a list once it was JSON
    assert [record.seq for record in told.records] == list(range(1, told.seq + 1))


def test_records_after_one(journal):
    story = Story(journal).wait(1.0).look(None).wait(1.0).look(None)
    assert [record.seq for record in journal.records(after=1)] == [2, 3]
    assert not list(journal.records(after=story.seq))


def test_the_newest_state_is_the_fold(journal):
    story = recovered_once(journal)
    assert journal.latest() == (story.seq, story.state)
    folded = replay(journal.entries())
    assert folded.state == story.state
    assert folded.seq == story.seq
    assert folded.whole and not folded.missing


def test_an_empty_journal(journal):
    assert list(journal.records()) == []
    assert journal.latest() is None
    assert journal.health().lost == 0


def test_closing_twice_is_closing_once(journal):
    Story(journal)
    journal.close()
    journal.close()
    assert journal.health().lost == 0


def test_appending_after_closing_raises_nothing(journal):
    journal.close()
    Story(journal)
    journal.close()
