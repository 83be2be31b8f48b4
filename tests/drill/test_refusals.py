"""What a drill refuses, and that nobody is hurt by it then."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from holdfast.adapters import proc
from holdfast.adapters.injection import Gone, Kind, Refused, Victim, drills, memory, signals
from holdfast.adapters.injection.drills import Drill, Target

pytestmark = pytest.mark.e2e


def test_a_job_that_does_not_allow_drills_is_left_alone(patient):
    job = patient(allow=False)
    pids = job.whole(1)
    done = job.drill("kill", "--all")
    assert done.returncode == 5
    assert "does not allow drills" in done.stderr
    assert "--allow-drills" in done.stderr
    assert all(proc.stat(pid) is not None for pid in pids)
    assert not job.job.state.incidents


def test_a_job_that_is_over(patient):
    job = patient()
    job.job.process.terminate()
    job.job.wait()
    done = job.drill("kill")
    assert done.returncode == 5
    assert "is over" in done.stderr


def test_a_rank_that_does_not_exist(patient):
    done = patient().drill("kill", "--rank", 7)
    assert done.returncode == 5
    assert "there is no rank 7" in done.stderr
    assert "ranks 0 to 1" in done.stderr


def test_an_agent_that_is_gone(patient):
    job = patient()
    job.job.process.kill()
    job.job.process.wait()
    done = job.drill("kill")
    assert done.returncode == 5
    assert "not running" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("melt",),
        ("kill", "--code", "3"),
        ("exit", "--code", "256"),
        ("kill", "--rank", "x"),
        ("kill", "--rank", "0", "--all"),
        ("kill", "--count", "0"),
        ("kill", "--every", "-1"),
    ],
)
def test_words_that_mean_nothing(patient, words):
    job = patient(ranks=1)
    assert job.drill(*words).returncode == 2
    assert not job.job.state.incidents


def test_a_refusal_for_programs(patient):
    done = patient(allow=False).drill("kill", "--json")
    assert json.loads(done.stderr)["error"]["code"] == "refused"


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    yield process
    process.kill()
    process.wait()


def test_a_process_that_is_no_child_of_the_agent_is_never_hit(sleeper):
    """A recycled pid: the number is right and the process is somebody else's."""
    stranger = Victim(Kind.WORKER, sleeper.pid, agent_pid=1, rank=0)
    for fault in drills.FAULTS:
        with pytest.raises(Gone):
            drills.strike(fault, [stranger])
    assert sleeper.poll() is None
    assert proc.stat(sleeper.pid).state in "SR"


def test_one_stranger_among_many_saves_them_all(sleeper):
    import os

    ours = Victim(Kind.WORKER, sleeper.pid, os.getpid(), 0)
    with pytest.raises(Gone):
        signals.send([ours, Victim(Kind.WORKER, 1, os.getpid(), 1)], signal.SIGKILL)
    assert sleeper.poll() is None


def test_the_same_seed_chooses_the_same_ranks():
    def chosen(seed: int) -> list[tuple[int, ...]]:
        return list(drills.ranks_of(Drill("kill", Target(), seed, count=20), world=8))

    assert chosen(5) == chosen(5)
    assert chosen(5) != chosen(6)
    assert {rank for ranks in chosen(5) for rank in ranks} <= set(range(8))


V1 = "9:name=systemd:/\n4:memory:/jobs/one\n0::/\n"
V1_MOUNTS = (
    "30 1 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    "31 1 0:27 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
)


def test_where_memory_is_counted_in_version_1():
    place = memory.place_of(V1, V1_MOUNTS)
    assert (place.version, place.path) == (1, "/sys/fs/cgroup/memory/jobs/one")


def test_where_memory_is_counted_in_a_container():
    mounts = "30 1 0:26 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
    place = memory.place_of("4:memory:/docker/abc/inner\n", mounts)
    assert place.path == "/sys/fs/cgroup/memory/inner"


def test_where_memory_is_counted_in_version_2(tmp_path):
    """The nearest cgroup above that hands memory down; the process's own cannot, since it has processes."""
    own = tmp_path / "user" / "job"
    own.mkdir(parents=True)
    (own / "cgroup.subtree_control").write_text("\n")
    (tmp_path / "user" / "cgroup.subtree_control").write_text("cpu memory pids\n")
    place = memory.place_of("0::/user/job\n", f"30 1 0:26 / {tmp_path} rw - cgroup2 cgroup2 rw\n")
    assert (place.version, place.path, place.nest) == (2, str(own), str(tmp_path / "user"))


def test_a_machine_without_memory_cgroups():
    with pytest.raises(Refused, match="no memory cgroups"):
        memory.place_of("9:name=systemd:/\n", "31 1 0:27 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n")
