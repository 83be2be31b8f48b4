"""The state folder: where it is, who lives there, what is removed, and what happens when it cannot be used."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from holdfast.adapters import catalogue
from holdfast.adapters.home import Home, new_job_id
from holdfast.adapters.sqlite_journal import SqliteJournal
from holdfast.model.errors import NotFound
from holdfast.model.state import Status
from tests.record.stories import Story, recovered_once, spec


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home")


def _job(home, job_id, tell=recovered_once, name="digits"):
    folder = home.job(job_id)
    journal = SqliteJournal.create(folder.journal, spec(job_id, name), created=1.0)
    tell(journal)
    journal.close()
    return folder


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HOLDFAST_HOME": "/a/b", "XDG_STATE_HOME": "/x", "HOME": "/h"}, "/a/b"),
        ({"XDG_STATE_HOME": "/x", "HOME": "/h"}, "/x/holdfast"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/h"}, "/h/.local/state/holdfast"),
        ({"HOLDFAST_HOME": "", "HOME": "/h"}, "/h/.local/state/holdfast"),
    ],
)
def test_where_it_is(environ, expected):
    assert str(Home.find(environ).root) == expected


def test_a_relative_home_is_taken_from_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Home.find({"HOLDFAST_HOME": "here"}).root == tmp_path / "here"


def test_ids_sort_by_time_and_differ():
    early, late = new_job_id(1_790_000_000.0, b"\xff\xff"), new_job_id(1_790_000_001.0, b"\0\0")
    assert early == "job-20260921-141320-ffff"
    assert early < late
    assert new_job_id(0.0, b"\0\1") != new_job_id(0.0, b"\0\2")


def test_a_job_is_held_until_released(home):
    folder = home.job("job-1")
    (seen,) = home.folders()
    assert folder.health.ok
    assert seen.held() is True
    folder.release()
    assert seen.held() is False
    assert (folder.path.stat().st_mode & 0o777) == 0o700


def test_the_lock_ends_with_its_process(home, tmp_path):
    code = (
        "import os, sys; from holdfast.adapters.home import Home; from pathlib import Path;"
        "Home(Path(sys.argv[1])).job('job-1'); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, home.root], check=False).returncode == -9
    assert home.folders()[0].held() is False


def test_incidents_are_kept_whole(home):
    folder = home.job("job-1")
    assert folder.read_incident(1) is None
    assert folder.write_incident(1, {"tails": {"0": ["a"]}}).ok
    assert folder.write_incident(1, {"tails": {"0": ["b"]}}).ok
    assert b'"b"' in folder.read_incident(1)
    assert [name for name in os.listdir(folder.path / "incidents") if name.startswith(".")] == []
    folder.release()


# -- a home that cannot be used


def test_a_home_that_is_a_file_falls_back_to_a_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    blocked = tmp_path / "file"
    blocked.write_text("")
    folder = Home(blocked).job("job-1")
    assert folder.path.is_dir()
    assert folder.path.is_relative_to(tmp_path)
    (note,) = folder.health.notes
    assert f"{blocked}: file exists" in note
    assert f"HOLDFAST_HOME={folder.path.parent.parent}" in note
    folder.release()


def test_no_folder_at_all_still_gives_a_job(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setattr("tempfile.tempdir", str(blocked))
    folder = Home(blocked / "home").job("job-1")
    (note,) = folder.health.notes
    assert "nothing is recorded" in note
    journal = SqliteJournal.create(folder.journal, spec(), created=1.0)
    Story(journal)
    assert not journal.flush()
    assert folder.write_incident(1, {}).lost == 1
    journal.close()
    folder.release()


def test_a_full_home_falls_back(home, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("holdfast.adapters.home._check_room", _full_below(home.root))
    folder = home.job("job-1")
    assert not folder.path.is_relative_to(home.root)
    assert "no space left" in folder.health.notes[0]
    assert home.folders() == []
    folder.release()


def _full_below(root):
    def check(folder):
        if folder.is_relative_to(root):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return check


# -- retention


def test_the_oldest_go_first_and_running_ones_stay(home):
    running = home.job("job-0")
    for number in range(1, 6):
        home.job(f"job-{number}").release()
    pruned = home.prune(keep=3)
    assert pruned.jobs == ("job-1", "job-2", "job-3")
    assert [folder.id for folder in home.folders()] == ["job-0", "job-4", "job-5"]
    running.release()


def test_bytes_are_bounded_too(home):
    for number in range(4):
        folder = home.job(f"job-{number}")
        (folder.logs / "rank-0.out").write_bytes(bytes(1000))
        folder.release()
    pruned = home.prune(keep=100, total_bytes=2500)
    assert pruned.jobs == ("job-0", "job-1")
    assert pruned.freed_bytes >= 2000


def test_pruning_nothing(home):
    assert home.prune() == home.prune(keep=0)
    home.job("job-1").release()
    assert home.prune().jobs == ()


# -- the catalogue


def test_standing_of_jobs(home):
    _job(home, "job-1").release()
    _job(home, "job-2", lambda journal: Story(journal).muster()).release()
    running = _job(home, "job-3", lambda journal: Story(journal).muster())
    home.job("job-4").release()
    assert {job.id: job.status for job in catalogue.jobs(home)} == {
        "job-1": Status.COMPLETED,
        "job-2": Status.LOST,
        "job-3": Status.RUNNING,
        "job-4": Status.LOST,
    }
    assert catalogue.jobs(home)[0].id == "job-4"
    running.release()


def test_a_job_of_another_machine_is_not_declared_lost_where_locks_do_not_travel(home, monkeypatch):
    _job(home, "job-1", lambda journal: Story(journal).muster()).release()
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    assert catalogue.look(home.folders()[0]).status is Status.LOST
    monkeypatch.setattr("holdfast.adapters.catalogue.magic_of", lambda _: 0x6969)
    job = catalogue.look(home.folders()[0])
    assert job.alive is None
    assert job.status is Status.RUNNING


def test_ways_to_name_a_job(home):
    for job_id, name in (("job-20260101-a", "one"), ("job-20260102-b", "two"), ("job-20260102-c", "two")):
        _job(home, job_id, name=name).release()
    assert catalogue.find(home, "last").id == "job-20260102-c"
    assert catalogue.find(home, "job-20260101").id == "job-20260101-a"
    assert catalogue.find(home, "one").id == "job-20260101-a"
    assert catalogue.find(home, "two").id == "job-20260102-c"
    with pytest.raises(NotFound, match="beginning of 2"):
        catalogue.find(home, "job-20260102")
    with pytest.raises(NotFound, match="Did you mean job-20260102-b"):
        catalogue.find(home, "job-20260102-bb")


def test_no_jobs_at_all(home):
    assert catalogue.jobs(home) == []
    with pytest.raises(NotFound, match="no job yet"):
        catalogue.find(home, "last")
