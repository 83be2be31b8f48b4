"""The demo as a user starts it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.adapters import proc
from holdfast.adapters.home import Home
from holdfast.cli import demo
from holdfast.cli.main import command_parser, find
from holdfast.demo import launch
from tests.e2e.conftest import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

WARM_UP = "    warm_up(replica)\n"


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return dict(os.environ)


def test_a_short_one(environment, tmp_path):
    command = [sys.executable, "-m", "holdfast", "demo", "--steps", "120", "--ranks", "3", "--kills", "3", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=230, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["holds"]
    assert all(claim["holds"] for claim in said["claims"])
    assert [fault["signal"] for fault in said["faults"]] == ["SIGKILL"] * 3
    assert all(fault["back_seconds"] > 0 and fault["detect_seconds"] >= 0 for fault in said["faults"])
    for run in said["runs"].values():
        assert sum(run["goodput"]["buckets"].values()) == pytest.approx(run["goodput"]["wall_seconds"], abs=1e-3)
        assert run["left_over"] == []
    assert said["conditions"]["cores"] == len(os.sched_getaffinity(0))
    assert "B: 100 %" in done.stderr
    assert "All 11 claims hold." in done.stderr
    assert "\x1b" not in done.stderr
    jobs = [folder.id for folder in Home(tmp_path / "home").folders()]
    assert [said["runs"][name]["job"] for name in "AB"] == jobs
    assert not list(tmp_path.glob("holdfast-demo-*"))


def test_a_script_that_cannot_resume_exactly_is_found_out(environment, tmp_path, monkeypatch, capsys):
    """Without the warm-up a resumed process adds up its gradients in another order, and the last bits differ."""
    text = Path(launch.SCRIPT).read_text()
    assert text.count(WARM_UP) == 1
    (tmp_path / "train.py").write_text(text.replace(WARM_UP, ""))
    (tmp_path / "digits.csv.gz").write_bytes(Path(launch.SCRIPT).with_name("digits.csv.gz").read_bytes())
    monkeypatch.setattr(launch, "SCRIPT", str(tmp_path / "train.py"))
    parser = command_parser(find("demo"), demo)
    code = demo.main(parser.parse_args(["--steps", "100", "--kills", "1", "--keep", str(tmp_path / "kept")]))
    shown = capsys.readouterr()
    assert code == 1
    failed = [line for line in shown.out.splitlines() if line.startswith("✗")]
    assert any("losses equal" in line for line in failed)
    assert any("final weights equal" in line for line in failed)
    assert "claims failed" in shown.out
    assert "everything the runs wrote" in shown.err


def test_it_can_be_interrupted(environment, tmp_path):
    command = [sys.executable, "-m", "holdfast", "demo", "--no-live", "--steps", "100000", "--kills", "0"]
    with open(tmp_path / "out", "wb") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
    home = Home(tmp_path / "home")
    try:
        wait_until(lambda: list(tmp_path.glob("holdfast-demo-*/run-a/trace-0")), "the training to begin")
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(40) == 130
    finally:
        process.kill()
    job = home.folders()[0]
    wait_until(lambda: not proc.with_variable("HOLDFAST_JOB_ID", job.id), "everything to be gone", 10)
    assert job.held() is False
