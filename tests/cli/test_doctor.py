"""What works on this machine, and what a machine looks like where it does not."""

from __future__ import annotations

import json
import os
import sys

import pytest

from holdfast.cli import doctor, main
from holdfast.cli.doctor import Level

GOOD = {
    "python": "3.11.7",
    "torch": "2.15.0+cpu",
    "distributed": True,
    "gloo": True,
    "nccl": False,
    "group_hooks": True,
    "optimizer_hooks": True,
    "cuda": None,
    "numpy": "2.4.6",
}


def levels(checks):
    return {check.name: check.level for check in checks}


def fixes(checks):
    return [check.name for check in checks if check.level is not Level.OK and not check.fix]


@pytest.mark.parametrize(
    "check",
    [doctor.check_pidfd, doctor.check_memfd, doctor.check_robust_mutex, doctor.check_subreaper, doctor.check_exit_code],
)
def test_the_kernel_is_asked_and_this_one_can(check):
    assert check().level is Level.OK


def test_a_mutex_check_leaves_no_child_behind():
    doctor.check_robust_mutex()
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_python_that_is_too_old():
    assert doctor.check_python((3, 10, 4)).level is Level.FAIL
    assert doctor.check_python((3, 11, 0)).level is Level.OK


def test_a_good_torch():
    assert set(levels(doctor.judge_torch(GOOD)).values()) == {Level.OK}


@pytest.mark.parametrize(
    ("changes", "name", "level"),
    [
        ({"torch": "2.4.1"}, "torch", Level.WARN),
        ({"distributed": False}, "torch.distributed", Level.FAIL),
        ({"gloo": False}, "backends", Level.WARN),
        ({"group_hooks": False}, "collectives", Level.WARN),
        ({"optimizer_hooks": False}, "step counting", Level.WARN),
    ],
)
def test_a_torch_that_lacks_something(changes, name, level):
    checks = doctor.judge_torch(GOOD | changes)
    assert levels(checks)[name] is level
    assert fixes(checks) == []


def test_an_interpreter_without_torch(tmp_path):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    (check,) = doctor.check_torch(str(bare))
    assert (check.level, "No module named 'torch'" in check.value) == (Level.WARN, True)
    (check,) = doctor.check_torch(str(tmp_path / "none"))
    assert check.level is Level.FAIL


@pytest.mark.parametrize(
    ("files", "level"),
    [
        ({}, Level.WARN),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.events": "oom_kill 0\n"}, Level.OK),
        ({"proc/self/cgroup": "7:memory:/a\n", "sys/fs/cgroup/memory/a/memory.oom_control": "x\n"}, Level.OK),
        ({"proc/self/cgroup": "7:memory:/a\n"}, Level.WARN),
    ],
)
def test_memory_events_of_both_kinds_of_cgroup(tmp_path, files, level):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert doctor.check_memory_events(str(tmp_path)).level is level


def test_a_home_that_does_not_exist_yet_is_fine(tmp_path):
    checks = levels(doctor.check_home(tmp_path / "not" / "yet"))
    assert checks["home"] is Level.OK
    assert not (tmp_path / "not").exists()


def test_a_home_that_nothing_can_be_written_to():
    (check,) = doctor.check_home(doctor.Path("/proc/holdfast"))
    assert (check.level, "HOLDFAST_HOME" in check.fix) == (Level.WARN, True)


MOUNTS = "/dev/vda / ext4 rw 0 0\nserver:/home /home nfs4 rw 0 0\ntmpfs /home/me/my\\040tmp tmpfs rw 0 0\n"


@pytest.mark.parametrize(("path", "kind"), [("/x", "ext4"), ("/home/me/a", "nfs4"), ("/home/me/my tmp/a", "tmpfs")])
def test_the_file_system_of_a_path(path, kind):
    assert doctor.file_system_of(doctor.Path(path), MOUNTS) == kind


@pytest.mark.e2e
def test_the_whole_examination_passes_here(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    assert main.main(["doctor", "--json"]) == 0
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert next(check for check in checks if check["name"] == "torch")["level"] == "ok"
    assert all(check["fix"] for check in checks if check["level"] != "ok")


def test_what_fails_is_printed_with_its_fix(capsys):
    doctor._print([doctor.Check("pidfd", Level.FAIL, "not there", "A newer kernel."), doctor.Check("x", Level.OK, "y")])
    assert capsys.readouterr().out.splitlines() == ["✗ pidfd  not there", "         → A newer kernel.", "✓ x      y"]
