"""Whose failure it was, and what follows: retries, finality, exit codes."""

from __future__ import annotations

import json

import pytest

from holdfast.model.state import Blame, Status
from tests.e2e.conftest import kill

pytestmark = pytest.mark.e2e


def test_an_exception_before_the_first_step_is_final(run, tmp_path):
    script = tmp_path / "broken.py"
    script.write_text("def load():\n    raise FileNotFoundError('no such data set')\nload()\n")
    job = run("--nproc-per-node", 2, script)
    assert job.wait() == 1
    state = job.state
    assert state.status is Status.FAILED
    assert state.incarnation == 1
    assert state.incidents["1"].verdict.blame is Blame.USER
    assert "no such data set" in state.incidents["1"].verdict.sentence
    assert "failed before its first step" in job.stderr()
    assert job.stderr().rstrip().endswith("FileNotFoundError: no such data set")
    assert "holdfast/worker" not in job.stderr()


def test_an_exception_of_one_rank_is_retried_once_and_final_when_it_repeats(run, scripts):
    job = run("--nproc-per-node", 2, scripts / "train.py", 30, "raise")
    assert job.wait() == 1
    state = job.state
    assert state.incarnation == 2
    assert "twice without progress" in state.reason
    casualty = state.incidents["1"].casualties[0]
    assert casualty.rank == 1
    assert casualty.raised.type == "ValueError"
    assert casualty.raised.traceback.rstrip().endswith("ValueError: the loss ran away")
    assert job.stderr().rstrip().endswith("ValueError: the loss ran away")


def test_an_exception_that_passes_is_survived(run, scripts):
    job = run("--nproc-per-node", 2, scripts / "train.py", 30, "raise-once")
    assert job.wait() == 0, job.stderr()
    assert job.state.incidents["1"].verdict.blame is Blame.USER
    assert "rank 1 finished at 30" in job.stdout()


def test_exceptions_in_all_ranks_are_one_incident(run, tmp_path):
    script = tmp_path / "all.py"
    script.write_text("raise RuntimeError('everywhere')\n")
    job = run("--nproc-per-node", 4, script)
    assert job.wait() == 1
    assert len(job.state.incidents) == 1
    assert job.state.incidents["1"].verdict.symptom == "exception"


@pytest.mark.parametrize("call", ["os._exit(7)", "sys.exit(7)"])
def test_a_code_is_the_users(run, tmp_path, call):
    script = tmp_path / "exits.py"
    script.write_text(f"import os, sys, time\nif os.environ['RANK'] == '1':\n    {call}\ntime.sleep(20)\n")
    job = run("--nproc-per-node", 2, script)
    assert job.wait() == 1
    assert "rank 1 exited with code 7" in job.state.reason


@pytest.mark.parametrize("call", ["os._exit(0)", "sys.exit(0)", "sys.exit()"])
def test_leaving_with_code_0_is_finishing(run, tmp_path, call):
    script = tmp_path / "exits.py"
    script.write_text(f"import os, sys\n{call}\n")
    job = run("--nproc-per-node", 2, script)
    assert job.wait() == 0, job.stderr()
    assert job.state.status is Status.COMPLETED


def test_a_crash_on_the_way_out_is_a_warning(run, tmp_path):
    script = tmp_path / "teardown.py"
    script.write_text("import atexit, os\natexit.register(os.abort)\nprint('worked')\n")
    job = run("--nproc-per-node", 2, script)
    assert job.wait() == 0, job.stderr()
    assert job.state.status is Status.COMPLETED
    assert job.state.incarnation == 1
    assert "the work counts" in job.stderr()


def test_a_hard_limit_on_restarts_is_hard(run, scripts):
    job = run("--nproc-per-node", 1, "--max-restarts", 2, scripts / "count.py", 400)
    for incarnation in (1, 2, 3):
        job.workers(1, incarnation)
        kill(job.workers(1, incarnation)[0])
    assert job.wait() == 75
    assert job.state.incarnation == 3
    assert "--max-restarts" in job.stderr()


def test_zero_restarts_mean_none(run, scripts):
    job = run("--max-restarts", 0, scripts / "count.py", 400)
    kill(job.workers(1)[0])
    assert job.wait() == 75
    assert job.state.incarnation == 1


def test_a_spent_budget_ends_a_crash_loop(run, tmp_path):
    script = tmp_path / "loop.py"
    script.write_text("import os\nos.kill(os.getpid(), 9)\n")
    job = run("--budget", 2, script)
    assert job.wait() == 75
    assert job.state.incarnation == 3
    assert "budget of 2 restarts is spent" in job.state.reason


def test_policy_stop_stops(run, scripts):
    job = run("--policy", "stop", scripts / "count.py", 400)
    kill(job.workers(1)[0])
    assert job.wait() == 75
    assert job.state.incarnation == 1


@pytest.mark.parametrize(("code", "status"), [(139, 75), (3, 1)], ids=["a shell's word for a signal", "a code"])
def test_codes_of_other_programs(run, tmp_path, code, status):
    script = tmp_path / "program.sh"
    script.write_text(f"#!/bin/sh\nexit {code}\n")
    script.chmod(0o755)
    job = run("--no-python", "--max-restarts", 1, script)
    assert job.wait() == status
    assert job.state.incarnation == (2 if status == 75 else 1)


def test_json_says_how_it_ended(run, tmp_path):
    script = tmp_path / "broken.py"
    script.write_text("raise ValueError('no')\n")
    job = run("--json", script)
    assert job.wait() == 1
    lines = [line for line in job.stderr().splitlines() if line.startswith("{")]
    last = json.loads(lines[-1])
    assert last["status"] == "FAILED"
    assert last["exit_code"] == 1
    assert all(json.loads(line) for line in lines)


def test_the_error_file_of_torchelastic_is_written(run, tmp_path):
    script = tmp_path / "broken.py"
    script.write_text("raise ValueError('recorded')\n")
    job = run("--log-dir", tmp_path / "logs", script)
    assert job.wait() == 1
    (error,) = (tmp_path / "logs").glob("*/attempt_0/0/error.json")
    assert json.loads(error.read_text())["message"]["message"] == "ValueError: recorded"
