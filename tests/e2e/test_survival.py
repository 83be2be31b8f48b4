"""Each way to lose processes, with real ones: what is killed, when, and that one recovery follows."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from holdfast.model.state import Blame, Purpose, Stage, Status
from tests.e2e.conftest import kill, wait_until

pytestmark = pytest.mark.e2e


def counted(folder: Path, rank: int) -> list[int]:
    return [int(line) for line in (folder / f"count-{rank}").read_text().split()]


@pytest.mark.parametrize("victims", [[0], [3], [1, 2], [0, 1, 2, 3]], ids=["first", "last", "two at once", "all"])
def test_killed_ranks_are_replaced_in_one_recovery(run, scripts, tmp_path, victims):
    job = run("--nproc-per-node", 4, scripts / "count.py", 60)
    workers = job.workers(4)
    wait_until(lambda: (tmp_path / "count-3").exists() and counted(tmp_path, 3), "the last rank to count")
    for rank in victims:
        kill(workers[rank])
    assert job.wait() == 0
    state = job.state
    assert state.status is Status.COMPLETED
    assert len(state.incidents) == 1
    incident = state.incidents["1"]
    assert incident.outcome in ("recovered", "completed")
    assert incident.attempts == 1
    assert state.incarnation == 2
    assert incident.verdict.blame is Blame.INFRASTRUCTURE
    assert incident.verdict.suspect in victims
    assert {c.rank for c in incident.casualties if not c.killed_by_us} <= set(victims)
    for rank in range(4):
        assert counted(tmp_path, rank)[-1] == 59
        assert f"rank {rank} done" in job.stdout()


def test_training_goes_on_from_the_checkpoint_and_ends_as_without_a_fault(run, scripts, tmp_path):
    plain = run("--nproc-per-node", 2, scripts / "train.py", 60)
    assert plain.wait() == 0, plain.stderr()
    (tmp_path / "checkpoint.pt").unlink()
    job = run("--nproc-per-node", 2, scripts / "train.py", 60)
    job.prints("rank 1 step 10 ")
    kill(job.workers(2)[1])
    assert job.wait() == 0, job.stderr()
    incident = job.state.incidents["1"]
    assert incident.outcome == "recovered"
    assert incident.remedy.sentence.startswith("restarted from ")
    assert incident.steps_lost is not None
    assert 0 <= incident.steps_lost <= 2
    assert incident.step_before - incident.steps_lost == incident.resumed_from
    finals = [line for line in job.stdout().splitlines() if "finished at" in line]
    assert sorted(finals) == sorted(line for line in plain.stdout().splitlines() if "finished at" in line)


@pytest.mark.parametrize("trouble", ["die-saving", "die-restoring"])
def test_a_kill_while_saving_or_restoring(run, scripts, trouble):
    job = run("--nproc-per-node", 2, scripts / "train.py", 40, trouble)
    if trouble == "die-restoring":
        job.prints("rank 1 step 5 ")
        kill(job.workers(2)[0])
    assert job.wait() == 0, job.stderr()
    state = job.state
    assert len(state.incidents) == 1
    assert state.incidents["1"].attempts == (2 if trouble == "die-restoring" else 1)
    assert "rank 0 finished at 40" in job.stdout()


def test_a_kill_while_the_script_imports(run, tmp_path):
    script = tmp_path / "imports.py"
    (tmp_path / "slow_module.py").write_text(
        "import os, time, pathlib\n"
        "draft = pathlib.Path(os.environ['SCRATCH'], 'draft' + os.environ['RANK'])\n"
        "first = os.environ['TORCHELASTIC_RESTART_COUNT'] == '0'\n"
        "draft.write_text(str(os.getpid()))\n"
        "if os.environ['RANK'] == '1':\n    draft.rename(draft.with_name('importing'))\n"
        "time.sleep(30 if first else 0)\n"
    )
    script.write_text("import slow_module\nprint('imported')\n")
    job = run("--nproc-per-node", 2, script)
    job.workers(2)
    pid = int(
        wait_until(lambda: (tmp_path / "importing").exists() and (tmp_path / "importing").read_text(), "the import")
    )
    os.kill(pid, signal.SIGKILL)
    assert job.wait() == 0, job.stderr()
    assert len(job.state.incidents) == 1
    assert job.stdout().count("imported") == 2


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGTERM])
def test_any_deadly_signal_is_infrastructure(run, scripts, number):
    job = run("--nproc-per-node", 2, scripts / "count.py", 40)
    job.prints("rank 1 of 2 counts 3")
    kill(job.workers(2)[1], number)
    assert job.wait() == 0, job.stderr()
    verdict = job.state.incidents["1"].verdict
    assert verdict.suspect == 1
    assert number.name in verdict.sentence


def test_a_stopped_worker_is_reported_and_replaced(run, scripts):
    job = run("--nproc-per-node", 2, scripts / "count.py", 60)
    job.prints("rank 1 of 2 counts 3")
    kill(job.workers(2)[1], signal.SIGSTOP)
    job.says("was stopped from outside")
    assert job.wait() == 0, job.stderr()
    assert job.state.incidents["1"].verdict.symptom == "stopped"


def test_a_stopped_worker_that_is_continued_is_left_alone(run, scripts):
    job = run("--nproc-per-node", 2, scripts / "count.py", 60)
    job.prints("rank 1 of 2 counts 3")
    worker = job.workers(2)[1]
    kill(worker, signal.SIGSTOP)
    job.says("was stopped from outside")
    kill(worker, signal.SIGCONT)
    assert job.wait() == 0, job.stderr()
    assert not job.state.incidents


def test_losing_a_spare_the_nursery_or_the_store_does_not_disturb_the_job(run, scripts, tmp_path):
    job = run("--nproc-per-node", 2, scripts / "train.py", 250)
    job.prints("rank 1 step 3 ")
    spares = job.spares(2)
    kill(spares[0])
    nursery = wait_until(lambda: _titled(job, "nursery of"), "the nursery")
    os.kill(nursery, signal.SIGKILL)
    keeper = job.processes(Purpose.STORE)[0]
    kill(keeper)
    job.says("the process that serves the store was lost")
    job.says("the nursery was lost")
    assert job.wait() == 0, job.stderr()
    assert job.state.incarnation == 1
    assert not job.state.incidents
    assert "rank 1 finished at 250" in job.stdout()


def test_a_death_after_the_nursery_is_gone_is_survived_from_spares(run, scripts):
    job = run("--nproc-per-node", 2, scripts / "train.py", 60)
    job.prints("rank 1 step 3 ")
    job.spares(2)
    os.kill(wait_until(lambda: _titled(job, "nursery of"), "the nursery"), signal.SIGKILL)
    kill(job.workers(2)[0])
    assert job.wait() == 0, job.stderr()
    assert job.state.incidents["1"].remedy.spares == 2


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_start_method_of_torch_means_fresh_interpreters(run, scripts, method):
    job = run("--nproc-per-node", 2, "--start-method", method, scripts / "train.py", 30)
    job.prints("rank 1 step 5 ")
    kill(job.workers(2)[1])
    assert job.wait(120) == 0, job.stderr()
    remedy = job.state.incidents["1"].remedy
    assert (remedy.spares, remedy.forks, remedy.colds) == (0, 0, 2)
    assert "rank 0 finished at 30" in job.stdout()


def test_without_spares_the_nursery_forks(run, scripts):
    job = run("--nproc-per-node", 2, "--spares", 0, scripts / "count.py", 40)
    job.prints("rank 1 of 2 counts 3")
    kill(job.workers(2)[1])
    assert job.wait() == 0, job.stderr()
    assert job.state.incidents["1"].remedy.forks == 2


def test_a_worker_that_becomes_another_program_is_alive(run, tmp_path):
    script = tmp_path / "becomes.py"
    script.write_text(
        "import os, sys\n"
        "print('becoming', os.environ['RANK'], flush=True)\n"
        "os.execv(sys.executable, [sys.executable, '-c', "
        "'import time; time.sleep(1.5); print(\"became another program\")'])\n"
    )
    job = run("--nproc-per-node", 2, script)
    assert job.wait() == 0, job.stderr()
    assert job.state.incarnation == 1
    assert job.stdout().count("became another program") == 2


def test_a_worker_that_became_another_program_and_dies_is_replaced(run, tmp_path):
    script = tmp_path / "becomes.py"
    script.write_text(
        "import os, sys\n"
        "os.execv(sys.executable, [sys.executable, '-c', 'import os, sys, time; print(\"pid\", os.getpid()); "
        "sys.stdout.flush(); time.sleep(2)'])\n"
    )
    job = run("--nproc-per-node", 1, script)
    pid = int(wait_until(lambda: job.stdout(), "the program").split()[1])
    os.kill(pid, signal.SIGKILL)
    assert job.wait() == 0, job.stderr()
    assert job.state.incarnation == 2


def test_more_processes_than_cores(run, scripts):
    world = 2 * (os.cpu_count() or 1) + 2
    job = run("--nproc-per-node", world, scripts / "count.py", 20)
    workers = job.workers(world)
    job.prints(f"rank {world - 1} of {world} counts 3")
    kill(workers[world - 1])
    assert job.wait() == 0, job.stderr()
    assert job.stdout().count(" done") == world


def _titled(job, text: str) -> int | None:
    from holdfast.adapters import proc

    for pid in proc.children_of(job.process.pid):
        try:
            if text.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        except OSError:
            continue
    return None


def test_two_launchers_at_once(run, scripts, tmp_path):
    jobs = []
    for number in range(2):
        scratch = tmp_path / f"scratch{number}"
        scratch.mkdir()
        jobs.append(run("--nproc-per-node", 2, scripts / "count.py", 30, env={"SCRATCH": str(scratch)}))
    for job in jobs:
        job.prints("rank 1 of 2 counts 3")
    heads = {head.meta.pid: head for job in jobs if (head := job.head())}
    assert len(heads) == 2 or all(job.process.poll() is None for job in jobs)
    for job in jobs:
        assert job.wait() == 0, job.stderr()


def test_spares_are_replenished(run, scripts):
    job = run("--nproc-per-node", 2, scripts / "train.py", 120)
    job.prints("rank 1 step 3 ")
    job.spares(2)
    kill(job.workers(2)[0])
    job.workers(2, incarnation=2)
    job.spares(2)
    kill(job.workers(2, incarnation=2)[1])
    assert job.wait() == 0, job.stderr()
    assert [i.remedy.spares for i in job.state.incidents.values()] == [2, 2]
    assert not job.processes(Purpose.SPARE, Stage.STARTING)
