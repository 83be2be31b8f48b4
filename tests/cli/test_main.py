"""The top of the command line: what every command shares."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from holdfast import __version__
from holdfast.cli import completion, dryrun, envdump, main
from holdfast.model.errors import HoldfastError, NotFound, Unsupported, UsageError


def run(*words, **options):
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *words], capture_output=True, text=True, timeout=60, **options
    )


def test_help_names_every_command(capsys):
    assert main.main(["--help"]) == 0
    shown = capsys.readouterr().out
    for command in main.COMMANDS:
        assert f"\n  {command.name} " in shown


def test_no_command_is_a_usage_error_that_helps(capsys):
    assert main.main([]) == 2
    assert "usage: holdfast" in capsys.readouterr().err


def test_version(capsys):
    assert main.main(["--version"]) == 0
    assert capsys.readouterr().out == f"holdfast {__version__}\n"


@pytest.mark.parametrize(("typed", "meant"), [("rnu", "run"), ("incident", "incidents"), ("docter", "doctor")])
def test_an_unknown_command_is_told_its_nearest(capsys, typed, meant):
    assert main.main([typed]) == 2
    assert f"holdfast {meant}" in capsys.readouterr().err


def test_a_script_in_place_of_a_command_is_told_how_to_run_it(capsys):
    assert main.main(["train.py", "--lr", "1"]) == 2
    assert "holdfast run train.py" in capsys.readouterr().err


def test_errors_say_what_where_why_and_what_next(capsys, tmp_path):
    assert main.main(["run", "--nnodes", "2", __file__]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("holdfast: --nnodes: ")
    assert "--nnodes 1" in shown


def test_errors_are_documents_for_programs(capsys):
    assert main.main(["run", "--json", "--nnodes", "2", __file__]) == 2
    error = json.loads(capsys.readouterr().err)["error"]
    assert (error["code"], error["status"], error["where"]) == ("unsupported", 2, "--nnodes")


def test_a_command_that_is_not_there_yet_is_a_clear_error():
    with pytest.raises(Unsupported, match="not part of this version"):
        main.load(main.Command("x", "holdfast.cli.no_such_module", ""))


def test_every_kind_of_error_has_a_code_of_its_own_and_a_status():
    kinds = [HoldfastError, UsageError, Unsupported, NotFound]
    assert len({kind.code for kind in kinds}) == len(kinds)
    assert [kind.status for kind in kinds] == [1, 2, 2, 5]


def test_the_dry_run_is_one_table(capsys, planned):
    dryrun.print_plan(planned("--nproc-per-node", "2", "--max-restarts", "3"))
    shown = capsys.readouterr().out
    for word in ("workers", "spares", "keeper", "max restarts", "grace", "RANK", "differs by rank"):
        assert word in shown


def test_the_dry_run_is_one_document(capsys, planned):
    dryrun.print_plan(planned("--nproc-per-node", "2", "--json"))
    document = json.loads(capsys.readouterr().out)
    assert document["spec"]["terms"]["world"] == 2
    assert document["environment"]["RANK"] == "0"
    assert document["environment_differs_by_rank"] == ["LOCAL_RANK", "RANK", "ROLE_RANK", "WANDB_RUN_ID"]


@pytest.mark.parametrize("start", ["nursery", "spawn", "exec"])
def test_any_plan_can_be_shown(capsys, planned, start):
    words = {"nursery": [], "spawn": ["--start-method", "spawn"], "exec": ["--no-python", "./program"]}[start]
    dryrun.print_plan(planned(*words))
    assert capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_commands_and_flags(shell):
    text = completion.script(shell)
    for word in ("run", "doctor", "max-restarts", "spares"):
        assert word in text


def test_completion_for_bash_is_bash():
    done = subprocess.run(["bash", "-n"], input=completion.script("bash"), text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_torchruns_own_completion_flag(capsys):
    with pytest.raises(SystemExit) as caught:
        main.main(["run", "--print-completion", "bash"])
    assert caught.value.code == 0
    assert "holdfast" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("WANDB_API_KEY", "abc", "***"),
        ("HOLDFAST_TOKEN", "abc", "***"),
        ("PYTHON_KEYRING_BACKEND", "", ""),
        ("TORCH_URL", "https://user:abc@host/x", "https://***@host/x"),
        ("TORCH_URL", "https://host/x?token=abc&n=1", "https://host/x?token=***&n=1"),
        ("OMP_NUM_THREADS", "4", "4"),
    ],
)
def test_secrets_are_masked(name, value, shown):
    assert envdump.masked(name, value) == shown


def test_the_dump_shows_only_what_bears_on_a_job():
    dump = envdump.describe({"NCCL_DEBUG": "INFO", "AWS_SECRET_ACCESS_KEY": "abc", "MY_PASSWORD": "x", "PATH": "/bin"})
    assert dump["environment"] == {"NCCL_DEBUG": "INFO", "PATH": "/bin"}


# -- the process itself


@pytest.mark.e2e
def test_the_package_runs_as_a_module():
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"holdfast {__version__}\n")


@pytest.mark.e2e
def test_a_reader_that_leaves_is_no_error(tmp_path):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-m", "holdfast", "--help"], stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (main.STATUS_BROKEN_PIPE, b"")


@pytest.mark.e2e
def test_planning_never_imports_torch(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    program = (
        "import sys\nfrom holdfast.cli.main import main\n"
        f"main(['run', '--dry-run', '--nproc-per-node', '2', {str(script)!r}])\n"
        "print({'torch', 'numpy', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "set()", done.stderr


@pytest.mark.e2e
def test_help_is_quick():
    """The best of a few starts, in processor time: other work on the machine must not fail it."""
    best = 1.0
    for _ in range(5):
        before = os.times()
        run("--help")
        after = os.times()
        best = min(best, after.children_user + after.children_system - before.children_user - before.children_system)
    assert best < 0.15
