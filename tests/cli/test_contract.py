"""The environment of workers, key by key against a real torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from holdfast.agent import contract
from holdfast.cli import flags
from holdfast.cli.plan import make_plan
from holdfast.model.ids import Incarnation, Rank

# Set by a fresh shell or an interpreter start, not by a launcher.
_NOT_THE_LAUNCHERS = {"_", "LC_CTYPE"}
# Different by nature in every run. TORCHELASTIC_ERROR_FILE is the agent's, who knows where files lie.
_FRESH = {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"}
# Documented in flags.DELIBERATE_DIFFERENCES.
_DELIBERATE = {"MASTER_ADDR", "TORCHELASTIC_MAX_RESTARTS"}
_OURS = {"HOLDFAST_JOB_ID", "HOLDFAST_JOB_NAME", "HOLDFAST_INCARNATION", "WANDB_RUN_ID", "WANDB_RESUME"}


def given_by_torchrun(folder, words, environ):
    """{rank: what a worker of torchrun has beyond the launcher's own environment}"""
    (folder / "train.py").write_text(
        "import json, os, sys\n"
        "with open(f'{os.environ[\"RANK\"]}.json', 'w') as file:\n"
        "    json.dump([dict(os.environ), sys.argv[1:]], file)\n"
    )
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words, "train.py", "--rank", "${local_rank}", "$x"],
        cwd=folder,
        env=environ,
        check=True,
        capture_output=True,
        timeout=100,
    )
    found = {}
    for path in sorted(folder.glob("*.json")):
        variables, arguments = json.loads(path.read_text())
        beyond = {
            name: value
            for name, value in variables.items()
            if environ.get(name) != value and name not in _NOT_THE_LAUNCHERS
        }
        found[int(path.stem)] = beyond, arguments
    return found


def given_by_us(facts, words, environ, *, world):
    line = [*words, "train.py", "--rank", "${local_rank}", "$x"]
    namespace = flags.run_parser(environ=environ).parse_args(line)
    spec = make_plan(namespace, environ, facts(source=b"import torch"), "job-1").spec
    found = {}
    for rank in range(world):
        worker = contract.worker_environment(spec, Rank(rank), Incarnation(1), 0, 29400, agent_store=spec.terms.keeper)
        beyond = {name: value for name, value in (spec.environment | worker).items() if environ.get(name) != value}
        found[rank] = beyond, list(contract.worker_arguments(spec, Rank(rank)))
    return found


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("--nproc-per-node", "2"), {}),
        (
            (
                "--standalone",
                "--nproc-per-node",
                "2",
                "--role",
                "trainer",
                "--virtual-local-rank",
                "--max-restarts",
                "3",
            ),
            {"CUDA_VISIBLE_DEVICES": "4,6", "OMP_NUM_THREADS": "2", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        ),
    ],
)
def test_workers_are_told_what_torchrun_tells_them(tmp_path, facts, words, extra):
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "OMP_"))} | extra
    theirs = given_by_torchrun(tmp_path, words, environ)
    ours = given_by_us(facts, words, environ, world=2)
    assert theirs.keys() == ours.keys() == {0, 1}
    for rank, (variables, arguments) in theirs.items():
        mine, my_arguments = ours[rank]
        assert mine.keys() - _OURS == variables.keys() - {"TORCHELASTIC_ERROR_FILE"}
        for name in variables.keys() - _FRESH - _DELIBERATE:
            assert mine[name] == variables[name], name
        assert my_arguments == arguments
        if "--max-restarts" in words:
            assert mine["TORCHELASTIC_MAX_RESTARTS"] == variables["TORCHELASTIC_MAX_RESTARTS"]


def environment(planned, *words, rank=0, incarnation=1, restarts=0, port=1234, environ=None, agent_store=True):
    spec = planned(*words, environ=environ).spec
    return contract.worker_environment(
        spec, Rank(rank), Incarnation(incarnation), restarts, port, agent_store=agent_store
    )


def test_what_changes_with_the_incarnation(planned):
    given = environment(planned, incarnation=4, restarts=3, port=4321, agent_store=False)
    assert given["HOLDFAST_INCARNATION"] == "4"
    assert given["TORCHELASTIC_RESTART_COUNT"] == "3"
    assert given["MASTER_PORT"] == "4321"
    assert given["TORCHELASTIC_USE_AGENT_STORE"] == "False"


def test_under_a_budget_scripts_still_read_a_number_of_restarts(planned):
    assert environment(planned, "--budget", "7")["TORCHELASTIC_MAX_RESTARTS"] == "7"
    assert environment(planned, "--max-restarts", "0")["TORCHELASTIC_MAX_RESTARTS"] == "0"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, {"CUDA_VISIBLE_DEVICES": "1"}),
        ({"CUDA_VISIBLE_DEVICES": "3, 5"}, {"CUDA_VISIBLE_DEVICES": "5"}),
        ({"HIP_VISIBLE_DEVICES": "2,7"}, {"CUDA_VISIBLE_DEVICES": "7", "HIP_VISIBLE_DEVICES": "7"}),
    ],
)
def test_each_worker_sees_its_own_gpu_as_the_first(planned, environ, expected):
    given = environment(planned, "--virtual-local-rank", "--nproc-per-node", "2", rank=1, environ=environ)
    assert given["LOCAL_RANK"] == "0"
    assert {name: given[name] for name in given if name.endswith("VISIBLE_DEVICES")} == expected


def test_only_rank_0_goes_on_with_the_jobs_run(planned):
    assert "WANDB_RUN_ID" not in environment(planned, "--nproc-per-node", "2", rank=0)
    assert environment(planned, "--nproc-per-node", "2", rank=1)["WANDB_RUN_ID"] == "job-1-1"
    given = environment(planned, "--nproc-per-node", "2", rank=1, environ={"WANDB_RUN_ID": "mine"})
    assert "WANDB_RUN_ID" not in given
