"""Machines that lack something: memory, disk, ports, permissions, a proper init, a large /dev/shm."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.model.state import Status
from tests.e2e.conftest import kill, wait_until

pytestmark = pytest.mark.e2e

ROOT = os.geteuid() == 0
CGROUP = Path("/sys/fs/cgroup/memory")


def test_a_taken_port_is_named(run, scripts):
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        job = run("--master-port", port, scripts / "count.py", 3)
        assert job.wait() == 2
    assert f"port {port}" in job.stderr()
    assert str(os.getpid()) in job.stderr()


def test_a_given_port_is_kept_through_incarnations(run, tmp_path):
    path = tmp_path / "port.py"
    path.write_text(
        "import os, signal\nimport torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "print('port', os.environ['MASTER_PORT'])\n"
        "dist.barrier()\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    for method in ((), ("--start-method", "spawn")):
        job = run("--nproc-per-node", 2, "--master-port", port, *method, path)
        assert job.wait(120) == 0, job.stderr()
        lines = job.stdout().split("\n")[:-1]
        assert set(lines) == {f"port {port}"}
        assert job.state.incarnation == 2


def test_every_incarnation_has_an_empty_store(run, tmp_path):
    path = tmp_path / "store.py"
    path.write_text(
        "import os, signal, torch.distributed as dist\n"
        "store = dist.TCPStore(os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']), is_master=False)\n"
        "life = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "print('agent store', os.environ['TORCHELASTIC_USE_AGENT_STORE'], 'keys', store.check(['left over']))\n"
        "store.set('left over', life)\n"
        "if life == '0':\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    job = run("--nproc-per-node", 1, path)
    assert job.wait(120) == 0, job.stderr()
    assert job.stdout() == "agent store True keys False\n" * 2


@pytest.mark.parametrize("what", ["missing", "folder", "unreadable"])
def test_a_script_that_cannot_be_read(run, tmp_path, what):
    path = tmp_path / "nothing.py"
    prefix: tuple[str, ...] = ()
    if what == "folder":
        path.mkdir()
    elif what == "unreadable":
        path.write_text("print(1)\n")
        path.chmod(0)
        prefix = _as_nobody()
    job = run(path, prefix=prefix)
    assert job.wait() == 2, job.stderr()
    assert str(path) in job.stderr()
    assert "Traceback" not in job.stderr()


def _as_nobody() -> tuple[str, ...]:
    """A prefix that runs a command as an ordinary user, for whom nothing is made easier; root needs one, others not."""
    if not ROOT:
        return ()
    return ("unshare", "--user", "--map-user=1000", "--map-group=1000")


def test_without_root(run, tmp_path):
    path = tmp_path / "loop.py"
    path.write_text("import os, time\nprint('user', os.getuid())\ntime.sleep(1)\n")
    job = run("--nproc-per-node", 2, path, prefix=_as_nobody())
    workers = job.workers(2)
    kill(workers[1])
    assert job.wait() == 0, job.stderr()
    assert job.stdout().count("user 0\n") == 0
    assert job.state.incarnation == 2
    assert job.state.incidents["1"].casualties[0].sign in ("robust mutex", "socket")


def test_a_home_that_cannot_be_written_costs_records_only(run, scripts, tmp_path):
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    job = run("--nproc-per-node", 2, scripts / "count.py", 5, env={"HOLDFAST_HOME": str(blocked)})
    assert job.wait() == 0, job.stderr()
    assert str(blocked) in job.stderr()
    assert job.stdout().count("done") == 2


@pytest.mark.skipif(not ROOT, reason="mounting a small file system needs root")
def test_a_full_disk_costs_records_and_says_so(run, scripts, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], check=True)
    try:
        text = "import os, time\nfor n in range(40):\n    print('w' * 100000)\n    time.sleep(0.05)\n"
        path = tmp_path / "wordy.py"
        path.write_text(text)
        job = run("--nproc-per-node", 2, path, env={"HOLDFAST_HOME": str(small)})
        workers = job.workers(2)
        wait_until(lambda: shutil.disk_usage(small).free < 4096, "the disk to be full")
        kill(workers[0])
        assert job.wait() == 0, job.stderr()
        assert job.stdout().count("w" * 100000) >= 80
        assert "holdfast: " in job.stderr()
        assert "incident 1" in job.stderr() or "starting incarnation 2" in job.stderr()
        assert any(word in job.stderr() for word in ("cannot be written", "lost", "full", "space"))
    finally:
        subprocess.run(["umount", "-l", small], check=True)


@pytest.mark.skipif(not ROOT or not CGROUP.is_dir(), reason="needs root and a cgroup v1 memory controller")
def test_a_memory_kill_is_recognised_by_the_cgroup(run, tmp_path):
    group = CGROUP / f"holdfast-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(300 * 2**20))
        path = tmp_path / "greedy.py"
        path.write_text(
            "import os, time\n"
            "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and os.environ['RANK'] == '1':\n"
            "    open('/proc/self/oom_score_adj', 'w').write('1000')\n"
            "    hoard = []\n    while True:\n        hoard.append(b'x' * 2**20)\n"
            "time.sleep(1)\n"
        )
        code = f"import os, sys; open({str(group / 'tasks')!r}, 'w').write('0'); os.execv(sys.argv[1], sys.argv[1:])"
        job = run("--nproc-per-node", 2, path, prefix=(sys.executable, "-c", code))
        assert job.wait() == 0, job.stderr()
        verdict = job.state.incidents["1"].verdict
        assert verdict.suspect == 1
        assert "memory ran out" in verdict.sentence
    finally:
        wait_until(lambda: not (group / "tasks").read_text(), "the group to empty", 10)
        group.rmdir()


def test_as_pid_1_orphans_are_reaped(run, tmp_path):
    """As in a container: Holdfast is process 1 of its own pid namespace."""
    _needs_namespaces()
    path = tmp_path / "orphans.py"
    path.write_text(
        "import os, time\n"
        "for _ in range(5):\n    pid = os.fork()\n    if not pid:\n        if not os.fork():\n"
        "            time.sleep(0.2)\n        os._exit(0)\n    os.waitpid(pid, 0)\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and os.environ['RANK'] == '0':\n"
        "    os.kill(os.getpid(), 9)\n"
        "time.sleep(1)\n"
        "def zombies():\n"
        "    pids = [p for p in os.listdir('/proc') if p.isdigit()]\n"
        "    return [open(f'/proc/{p}/stat').read().rsplit(')')[-1].split()[0] for p in pids].count('Z')\n"
        "deadline = time.monotonic() + 10\n"
        "while zombies() and time.monotonic() < deadline:\n    time.sleep(0.01)\n"
        "print('zombies', zombies())\n"
    )
    prefix = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    job = run("--nproc-per-node", 2, path, prefix=prefix)
    assert job.wait() == 0, job.stderr()
    assert job.stdout().splitlines() == ["zombies 0", "zombies 0"]


def test_with_64_megabytes_of_shared_memory(run, scripts, tmp_path):
    _needs_namespaces()
    small = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'
    job = run(
        *("--nproc-per-node", 4, scripts / "train.py", 30),
        prefix=("unshare", "--mount", "sh", "-c", small, "sh"),
    )
    job.prints("rank 3 step 5 ")
    kill(job.workers(4)[2])
    assert job.wait() == 0, job.stderr()
    assert job.state.status is Status.COMPLETED


def _needs_namespaces() -> None:
    if subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to make namespaces (root)")
