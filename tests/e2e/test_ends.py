"""How a job is stopped, and that nothing is left behind however it ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from holdfast.adapters import proc
from holdfast.model.state import Status
from tests.e2e.conftest import wait_until

pytestmark = pytest.mark.e2e

SAVES = (
    "import os, signal, sys, time, pathlib\n"
    "mark = pathlib.Path(os.environ['SCRATCH']) / ('saved' + os.environ['RANK'])\n"
    "def save(*_):\n    mark.write_text('saved')\n    sys.exit(0)\n"
    "signal.signal(signal.SIGTERM, save)\n"
    "print('ready', os.environ['RANK'])\n"
    "while True:\n    time.sleep(0.05)\n"
)
IGNORES = (
    "import os, signal, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "print('ready', os.environ['RANK'])\n"
    "while True:\n    time.sleep(0.05)\n"
)


def alive(pid: int) -> bool:
    """A zombie is dead; how soon its new parent looks at it is not our affair."""
    seen = proc.stat(pid)
    return seen is not None and seen.state != "Z"


def ready(job) -> None:
    wait_until(lambda: job.stdout().count("ready") == 2, "both ranks")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_one_signal_drains(run, tmp_path, number, code):
    path = tmp_path / "saves.py"
    path.write_text(SAVES)
    job = run("--nproc-per-node", 2, path)
    ready(job)
    job.process.send_signal(number)
    assert job.wait() == code
    assert job.state.status is Status.STOPPED
    assert [(tmp_path / f"saved{rank}").read_text() for rank in range(2)] == ["saved", "saved"]
    assert not job.left_behind()


def test_a_second_signal_kills(run, tmp_path):
    path = tmp_path / "ignores.py"
    path.write_text(IGNORES)
    job = run("--nproc-per-node", 2, path)
    ready(job)
    job.process.send_signal(signal.SIGINT)
    wait_until(lambda: job.state.stop_signal, "the first signal to be recorded")
    assert job.process.poll() is None
    job.process.send_signal(signal.SIGINT)
    assert job.wait(15) == 130


def test_the_time_to_leave_is_bounded(run, tmp_path):
    path = tmp_path / "ignores.py"
    path.write_text(IGNORES)
    job = run("--nproc-per-node", 2, "--shutdown-timeout", 1, path)
    ready(job)
    job.process.send_signal(signal.SIGTERM)
    assert job.wait(20) == 143


def test_survivors_that_handle_sigterm_get_their_grace(run, tmp_path):
    path = tmp_path / "saves.py"
    path.write_text(SAVES.replace("while True:", "while os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':"))
    job = run("--nproc-per-node", 2, "--grace", 2, path)
    ready(job)
    os.kill(job.workers(2)[0].pid, signal.SIGKILL)
    assert job.wait() == 0, job.stderr()
    assert (tmp_path / "saved1").exists()


def test_survivors_that_ignore_sigterm_are_not_waited_for(run, tmp_path):
    path = tmp_path / "ignores.py"
    path.write_text(IGNORES.replace("while True:", "while os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':"))
    job = run("--nproc-per-node", 2, path)
    ready(job)
    os.kill(job.workers(2)[0].pid, signal.SIGKILL)
    assert job.wait() == 0, job.stderr()


@pytest.mark.parametrize("kind", ["plain", "own session"])
def test_grandchildren_die_with_their_worker(run, tmp_path, kind):
    detach = "os.setsid()" if kind == "own session" else "pass"
    path = tmp_path / "parent.py"
    path.write_text(
        "import os, time, pathlib\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    pid = os.fork()\n"
        f"    if not pid:\n        {detach}\n        time.sleep(300)\n"
        "    draft = pathlib.Path(os.environ['SCRATCH'], 'draft')\n"
        "    draft.write_text(str(pid))\n    draft.rename(draft.with_name('grandchild'))\n"
        "    time.sleep(300)\n"
        "time.sleep(1)\n"
    )
    job = run(path)
    mark = tmp_path / "grandchild"
    pid = int(wait_until(lambda: mark.exists() and mark.read_text(), "the grandchild"))
    os.kill(job.workers(1)[0].pid, signal.SIGKILL)
    wait_until(lambda: proc.stat(pid) is None, "the grandchild to die", 10)
    assert job.wait() == 0, job.stderr()


def test_a_killed_launcher_leaves_nothing(run, tmp_path, scripts):
    path = tmp_path / "parent.py"
    path.write_text(
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'], start_new_session=True)\n"
        "print('ready')\ntime.sleep(300)\n"
    )
    before = set(os.listdir("/dev/shm"))
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    job = run("--nproc-per-node", 2, path, env={"TMPDIR": str(temporary)})
    ready(job)
    children = proc.children_of(job.process.pid)
    assert len(job.left_behind()) >= 5
    job.process.kill()
    job.process.wait()
    wait_until(lambda: not job.left_behind(), "every process of the job to be gone", 10)
    wait_until(lambda: not any(map(alive, children)), "every child to be dead", 10)
    assert set(os.listdir("/dev/shm")) <= before
    assert not list(temporary.iterdir())


def test_a_stop_during_start_up(run, scripts):
    job = run("--nproc-per-node", 2, scripts / "train.py", 1000)
    wait_until(lambda: (head := job.head()) and head.state.phase.value == "warming", "the nursery to start")
    job.process.send_signal(signal.SIGTERM)
    assert job.wait(20) == 143
    assert not job.left_behind()


def test_nohup_is_respected(run, scripts):
    job = run(scripts / "count.py", 20, prefix=("nohup",))
    job.prints("counts 3")
    job.process.send_signal(signal.SIGHUP)
    assert job.wait() == 0, job.stderr()


def test_sockets_and_files_are_given_back(run, scripts, tmp_path):
    job = run("--nproc-per-node", 2, scripts / "count.py", 40)
    job.prints("rank 1 of 2 counts 3")
    before = len(os.listdir(f"/proc/{job.process.pid}/fd"))
    for incarnation in (1, 2):
        os.kill(job.workers(2, incarnation)[0].pid, signal.SIGKILL)
    job.workers(2, incarnation=3)
    wait_until(
        lambda: len(os.listdir(f"/proc/{job.process.pid}/fd")) <= before + 14,
        "descriptors of the dead to be closed",
        10,
    )
    assert job.wait() == 0


def test_the_job_folder_is_all_that_stays(run, scripts, tmp_path):
    job = run(scripts / "count.py", 3)
    assert job.wait() == 0
    assert {p.name for p in Path(job.home.root).iterdir()} == {"jobs"}
