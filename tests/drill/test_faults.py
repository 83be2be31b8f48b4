"""Each fault against a real job: the kernel did it, and the job's record says what it was."""

from __future__ import annotations

import os
import platform

import pytest

from holdfast.adapters import proc
from holdfast.adapters.injection import Kind, victims
from holdfast.adapters.sqlite_journal import read_head
from tests.e2e.conftest import wait_until

pytestmark = pytest.mark.e2e

on_x86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="ptrace faults are for x86-64")


@pytest.mark.parametrize(("fault", "number"), [("kill", 9), ("segv", 11), ("term", 15)])
def test_a_signal_ends_the_rank_that_was_meant(patient, fault, number):
    job = patient()
    pids = job.whole(1)
    made = job.drilled(fault, "--rank", 1)["injections"][0]
    assert made["victims"] == [{"kind": "worker", "rank": 1, "pid": pids[1], "id": "p2", "incarnation": 1}]
    casualty = job.casualty(pids[1])
    assert (casualty.rank, casualty.exit.signal, casualty.killed_by_us) == (1, number, False)
    assert 0 <= casualty.at - made["at_monotonic_ns"] / 1e9 < 5
    assert not set(job.whole(2)) & set(pids)


def test_a_stopped_rank_goes_on_when_it_is_continued(patient):
    job = patient()
    pid = job.whole(1)[0]
    job.drilled("stop", "--rank", 0)
    wait_until(lambda: proc.stat(pid).state == "T", "rank 0 to be stopped")
    wait_until(lambda: job.job.state.processes["p1"].stopped_at is not None, "the agent to know")
    job.drilled("cont", "--rank", 0)
    wait_until(lambda: proc.stat(pid).state != "T", "rank 0 to go on")
    wait_until(lambda: job.job.state.processes["p1"].stopped_at is None, "the agent to know")
    assert not job.job.state.incidents


@on_x86_64
@pytest.mark.parametrize("how", ["sleeps", "computes", "waits"])
def test_a_process_exits_with_the_code_that_was_asked_for(patient, how):
    job = patient(how)
    pid = job.whole(1)[1]
    job.drilled("exit", "--rank", 1, "--code", 43)
    assert job.casualty(pid).exit.code == 43


@pytest.mark.skipif(os.geteuid() != 0, reason="making a memory cgroup needs root")
@pytest.mark.parametrize(
    ("how", "note"),
    [("allocates", "by itself"), pytest.param("sleeps", "through ptrace", marks=on_x86_64)],
)
def test_memory_runs_out_for_one_process(patient, how, note):
    job = patient(how)
    pid = job.whole(1)[0]
    made = job.drilled("oom", "--rank", 0)["injections"][0]
    assert made["effective"]
    assert note in made["note"]
    assert job.casualty(pid).exit.signal == 9
    wait_until(lambda: not _pens(), "the drill's cgroup to be gone")
    job.whole(2)


def _pens() -> list[str]:
    return [path for path, _, _ in os.walk("/sys/fs/cgroup") if "holdfast-drill-" in path]


def test_two_ranks_die_as_one_incident(patient):
    job = patient(ranks=3)
    pids = job.whole(1)
    made = job.drilled("kill", "--rank", "0,2")["injections"][0]
    assert [victim["rank"] for victim in made["victims"]] == [0, 2]
    for pid in (pids[0], pids[2]):
        assert job.casualty(pid).exit.signal == 9
    job.whole(2)
    assert len(job.job.state.incidents) == 1


def test_all_ranks(patient):
    job = patient()
    pids = job.whole(1)
    job.drilled("kill", "--all")
    assert {job.casualty(pid).exit.signal for pid in pids} == {9}
    job.whole(2)


def test_without_the_nursery_the_job_goes_on_and_gets_another(patient):
    job = patient()
    pids = job.whole(1)
    made = job.drilled("kill", "--nursery")["injections"][0]
    assert made["victims"][0]["kind"] == "nursery"
    wait_until(lambda: job.job.state.nursery.losses == 1, "the loss to be noticed")
    wait_until(lambda: job.job.state.nursery.stage == "warm", "another nursery")
    assert job.whole(1) == pids


def test_a_spare_is_replaced(patient):
    job = patient(flags=("--spares", "1"))
    first = job.job.spares(1)[0]
    made = job.drilled("kill", "--spare")["injections"][0]
    assert made["victims"][0]["pid"] == first.pid
    wait_until(lambda: (now := job.job.spares(1)) and now[0].pid != first.pid, "another spare")
    assert not job.job.state.incidents


def test_several_faults_hit_whoever_has_the_rank_by_then(patient):
    job = patient()
    made = job.drilled("kill", "--rank", 0, "--count", 3, "--every", 0.2)["injections"]
    hit = [injection["victims"][0]["pid"] for injection in made]
    assert len(set(hit)) == 3
    for pid in hit:
        assert job.casualty(pid).rank == 0


def test_a_program_of_the_users_own_is_found_by_its_rank(run, tmp_path):
    program = tmp_path / "program.sh"
    program.write_text("#!/bin/sh\nwhile true; do sleep 0.1; done\n")
    program.chmod(0o755)
    job = run("--nproc-per-node", 2, "--allow-drills", "--no-python", program)
    job.workers(2)

    def both() -> dict | None:
        folders = job.home.folders()
        found = victims.workers(read_head(folders[0].journal))
        return found if len(found) == 2 else None

    found = wait_until(both, "both programs")
    assert {rank: victim.kind for rank, victim in found.items()} == {0: Kind.WORKER, 1: Kind.WORKER}
    for rank, victim in found.items():
        with open(f"/proc/{victim.pid}/environ", "rb") as file:
            assert f"RANK={rank}".encode() in file.read().split(b"\0")
