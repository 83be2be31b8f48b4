"""The real journal: on disk, beside readers, on a network file system, and on a disk that is full for real."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from itertools import pairwise

import pytest

from holdfast.adapters import sqlite_journal
from holdfast.adapters.filesystem import magic_of, network_name
from holdfast.adapters.sqlite_journal import SqliteJournal, UnreadableError, read_entries, read_head
from holdfast.core.record import Record, Snapshot, replay
from tests.record.stories import Story, recovered_once, spec


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.db"


@pytest.fixture
def begin(path):
    made = []

    def begin(**options):
        journal = SqliteJournal.create(path, spec(), created=12.5, **options)
        made.append(journal)
        return journal

    yield begin
    for journal in made:
        journal.close()


def test_what_the_job_is_can_be_read_before_anything_happened(begin, path):
    begin().flush()
    head = read_head(path)
    assert head.meta.spec == spec()
    assert head.meta.created == 12.5
    assert head.meta.pid == os.getpid()
    assert head.meta.pid_started > 0
    assert head.seq == 0


def test_a_reader_beside_the_writer_sees_whole_commits(begin, path):
    journal = begin()
    story = Story(journal)
    journal.flush()
    assert read_head(path).state == story.state
    story.muster()
    journal.flush()
    assert read_head(path).state == story.state
    assert replay(read_entries(path)).state == story.state


def test_durable_settings(begin, path):
    begin().flush()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize("magic", [0x6969, 0xFF534D42, 0x65735546, 0x01021997])
def test_a_network_file_system_is_noticed_and_handled(begin, path, magic):
    journal = begin(magic=magic)
    recovered_once(journal)
    journal.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)  # no WAL in the file's header
    assert not path.with_name("journal.db-wal").exists()
    (note,) = journal.health().notes
    assert network_name(magic) in note
    assert journal.health().lost == 0


def test_magic_numbers(tmp_path):
    assert network_name(0x6969) == "NFS"
    assert network_name(-11317950) == "CIFS"  # as a signed long would show 0xFF534D42
    assert network_name(0xEF53) is None
    assert magic_of("/proc") == 0x9FA0
    assert magic_of(tmp_path / "nowhere") == 0


def test_a_folder_that_does_not_exist_costs_records_and_says_so(tmp_path):
    journal = SqliteJournal.create(tmp_path / "none" / "journal.db", spec(), created=1.0, waiting_limit=3)
    story = recovered_once(journal)
    assert not journal.flush()
    health = journal.health()
    assert "cannot be written" in health.notes[0]
    assert health.waiting == 3
    assert health.lost == story.seq - 3
    journal.close()
    assert journal.health().lost == story.seq


def test_records_wait_for_the_disk_and_are_all_kept_if_it_comes_back_in_time(tmp_path):
    path = tmp_path / "later" / "journal.db"
    journal = SqliteJournal.create(path, spec(), created=1.0)
    story = recovered_once(journal)
    assert not journal.flush()
    path.parent.mkdir()
    assert journal.flush()
    assert journal.health().ok
    assert replay(read_entries(path)).state == story.state
    journal.close()


def test_a_snapshot_closes_the_hole_when_records_were_lost(tmp_path):
    path = tmp_path / "later" / "journal.db"
    journal = SqliteJournal.create(path, spec(), created=1.0, waiting_limit=4)
    story = Story(journal).wait(1.0).muster().wait(1.0).first_steps(0).wait(1.0).look(5)
    assert not journal.flush()
    before = story.seq
    path.parent.mkdir()
    story.wait(1.0).look(6)
    assert journal.flush()
    entries = list(read_entries(path))
    assert isinstance(entries[0], Snapshot)
    assert all(isinstance(entry, Record) for entry in entries[1:])
    replayed = replay(entries)
    assert replayed.state == story.state
    assert replayed.missing == ((1, before + 1 - 4),)
    assert read_head(path).state == story.state
    assert journal.health().lost == before + 1 - 4
    journal.close()


def test_old_records_give_way_to_a_snapshot(path, begin):
    journal = begin(keep_records=10)
    story = Story(journal).muster().first_steps(0)
    for step in range(1, 200):
        story.wait(1.0).look(step)
        if step % 10 == 0:
            journal.flush()
    journal.close()
    entries = list(read_entries(path))
    assert len(entries) <= 2 * 10 + 2
    assert isinstance(entries[0], Snapshot)
    assert replay(entries).state == story.state
    assert journal.health().ok


def test_replay_to_a_record(begin, path):
    story = recovered_once(begin())
    entries = list(story.journal.entries())
    states = [replay(entries, to=seq).state for seq in range(story.seq + 1)]
    assert states[-1] == story.state
    assert sum(a != b for a, b in pairwise(states)) > 10


def test_what_is_no_journal(path):
    with pytest.raises(UnreadableError):
        read_head(path)
    path.write_bytes(b"not a database at all, whatever its name says" * 100)
    with pytest.raises(UnreadableError):
        read_head(path)
    path.write_bytes(b"")
    with pytest.raises(UnreadableError):
        read_head(path)


def test_a_journal_of_the_future_is_refused_in_words(path, begin, monkeypatch):
    begin().close()
    monkeypatch.setattr(sqlite_journal, "SCHEMA", 0)
    with pytest.raises(UnreadableError, match="newer"):
        read_head(path)


def test_a_folder_that_cannot_be_written_to_can_be_read(path, begin):
    story = recovered_once(begin())
    story.journal.close()
    path.chmod(0o400)
    path.parent.chmod(0o500)
    try:
        assert read_head(path).state == story.state
    finally:
        path.parent.chmod(0o700)


# -- a disk that is full, for real


_KILLED = """
import os, signal, sys
from pathlib import Path
from holdfast.adapters.sqlite_journal import SqliteJournal
from tests.record.stories import recovered_once, spec
journal = SqliteJournal.create(Path(sys.argv[1]), spec(), created=1.0)
story = recovered_once(journal)
journal.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""

_FULL = """
import json, resource, sys
from pathlib import Path
from holdfast.adapters.sqlite_journal import SqliteJournal, read_entries, read_head
from holdfast.core.record import replay
from tests.record.stories import Story, spec
path, limit, ballast = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
journal = SqliteJournal.create(path, spec(), created=1.0, waiting_limit=50)
story = Story(journal).muster().first_steps(0)
said = []
def fill():
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    else:
        with ballast.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)): pass
            except OSError: pass
def empty():
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    else:
        ballast.unlink()
assert journal.flush()
fill()
for step in range(1, 400):
    story.wait(1.0).look(step)
    if step % 40 == 0:
        journal.flush()
full = journal.health()
empty()
story.wait(1.0).look(400)
kept = journal.flush()
after = journal.health()
journal.close()
replayed = replay(read_entries(path))
print(json.dumps({
    "full": [full.notes, full.lost, full.waiting], "kept": kept, "after": [after.notes, after.lost, after.waiting],
    "equal": replayed.state == story.state == read_head(path).state, "missing": replayed.missing,
}))
"""


def _python(code, *arguments):
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=os.path.dirname(os.path.dirname(os.path.dirname(__file__))),
        check=False,
    )


def test_a_journal_survives_the_death_of_its_writer(path):
    done = _python(_KILLED, path)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert replay(read_entries(path)).state == recovered_once().state


def _check_full(done):
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    notes, lost, waiting = told["full"]
    assert "cannot be written" in notes[0]
    assert lost > 0
    assert 0 < waiting <= 50
    assert told["kept"] and told["equal"]
    notes, lost_after, waiting = told["after"]
    assert waiting == 0
    assert notes == [f"{lost_after} records of the journal are lost"]
    assert sum(last - first + 1 for first, last in told["missing"]) == lost_after


def test_files_that_may_not_grow(path):
    """RLIMIT_FSIZE makes every write fail as a full disk does, without any privilege."""
    _check_full(_python(_FULL, path, 4096, path.with_name("ballast")))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root; RLIMIT_FSIZE stands in for it above")
def test_a_full_tmpfs(tmp_path):
    mount = tmp_path / "small"
    mount.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", mount], check=False).returncode != 0:
        pytest.skip("root, but not allowed to mount; RLIMIT_FSIZE stands in for it above")
    try:
        _check_full(_python(_FULL, mount / "journal.db", 0, mount / "ballast"))
    finally:
        subprocess.run(["umount", mount], check=True)
