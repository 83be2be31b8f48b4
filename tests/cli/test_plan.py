"""What a launch line means on a machine: the plan, without starting anything."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.cli import facts as machine
from holdfast.cli import flags, plan
from holdfast.cli.facts import ScriptKind
from holdfast.model.errors import Unsupported, UsageError
from holdfast.model.spec import JobSpec, Mode, Start


def refused(planned, *words, **options):
    with pytest.raises(UsageError) as caught:
        planned(*words, **options)
    error = caught.value
    assert error.status == 2
    assert error.where or error.why
    return error


# -- launch lines people paste


@pytest.mark.parametrize(
    "line",
    [
        "--standalone --nproc_per_node=2",
        "--standalone --nnodes=1 --nproc-per-node 2",
        "--nnodes 1 --rdzv-backend c10d --rdzv-endpoint localhost:0 --nproc-per-node 2",
        "--nnodes=1:1 --rdzv_id=101 --rdzv_endpoint=localhost:5900 --rdzv_backend=c10d --nproc_per_node=2",
        "--nnodes=1 --node_rank=0 --nproc_per_node=2 --master_addr=127.0.0.1 --master_port=29501",
        "--nproc_per_node 2 --nnodes 1 --node_rank 0 --master_port 0",
        "--nproc-per-node 2 --rdzv-conf timeout=300,read_timeout=60",
        "--nproc-per-node 2 --rdzv-backend etcd --rdzv-endpoint etcd.example:2379 --rdzv-id 7",
        "--nproc 2 --max-r 3 -r 3 -t 0:1,1:2 --monitor-interval 5",
    ],
)
def test_lines_that_people_paste_just_work(planned, line):
    assert planned(*line.split()).spec.terms.world == 2


def test_a_static_endpoint_is_taken_as_given(planned):
    spec = planned("--master-addr", "10.0.0.5", "--master-port", "29501", "--rdzv-id", "mine").spec
    assert (spec.master_addr, spec.master_port, spec.run_id) == ("10.0.0.5", 29501, "mine")
    spec = planned("--rdzv-endpoint", "[::1]:1234").spec
    assert (spec.master_addr, spec.master_port, spec.run_id) == ("::1", 1234, "none")


def test_without_an_address_any_free_port_and_a_fresh_id(planned):
    for words in ((), ("--standalone",), ("--standalone", "--rdzv-id", "7")):
        spec = planned(*words).spec
        assert (spec.master_addr, spec.master_port, spec.run_id) == ("127.0.0.1", 0, "fresh-run-id")
    spec = planned("--rdzv-backend", "c10d", "--rdzv-id", "7", "--local-addr", "10.0.0.9").spec
    assert (spec.master_addr, spec.master_port, spec.run_id) == ("10.0.0.9", 0, "7")
    assert planned("--rdzv-backend", "c10d").spec.run_id == "none"


@pytest.mark.parametrize("nnodes", ["2", "1:4", "2:2"])
def test_several_nodes_are_not_supported_yet(planned, nnodes):
    error = refused(planned, "--nnodes", nnodes)
    assert isinstance(error, Unsupported)
    assert "--nnodes 1" in error.remedy


@pytest.mark.parametrize("nnodes", ["0", "x", "1:2:3", "2:1", "-1", ""])
def test_a_number_of_nodes_that_is_none(planned, nnodes):
    assert refused(planned, f"--nnodes={nnodes}").where == "--nnodes"


def test_a_rank_among_one_node(planned):
    assert planned("--node-rank", "0").spec.terms.world == 1
    assert refused(planned, "--node-rank", "3").where == "--node-rank"
    assert "ignored" in planned("--node-rank", "3", "--rdzv-backend", "c10d").notices[0]


@pytest.mark.parametrize(
    "words",
    [
        ("--rdzv-backend", "zeus"),
        ("--rdzv-endpoint", "host-without-port"),
        ("--rdzv-endpoint", "a:b:c"),
        ("--rdzv-conf", "timeout"),
        ("--logs-specs", "mine"),
        ("--redirects", "4"),
        ("--tee", "0:1,1"),
        ("--local-ranks-filter", "0,x"),
        ("--signals-to-handle", "SIGTERM,SIGNONE"),
        ("--signals-to-handle", "SIGKILL"),
        ("--shutdown-timeout", "-1"),
        ("--max-restarts", "-1"),
        ("--max-restarts", "3", "--budget", "3"),
        ("--start-method", "spawn", "--spares", "2"),
        ("--no-python", "--module"),
        ("--no-python", "--spares", "1"),
        ("--numa-binding", "node"),
    ],
)
def test_what_cannot_be_meant_is_refused(planned, words):
    refused(planned, *words)


# -- workers


@pytest.mark.parametrize(
    ("text", "gpus", "world"), [("3", 0, 3), ("cpu", 4, 8), ("auto", 0, 8), ("auto", 4, 4), ("gpu", 4, 4)]
)
def test_how_many_workers(planned, text, gpus, world):
    assert planned("--nproc-per-node", text, gpu_count=gpus).spec.terms.world == world


def test_a_device_only_torch_can_count(planned):
    assert planned("--nproc-per-node", "xpu", device_counts={"xpu": 2}).spec.terms.world == 2


@pytest.mark.parametrize("text", ["gpu", "0", "-2", "1.5", "many", "xpu"])
def test_workers_that_cannot_be_started(planned, text):
    assert refused(planned, f"--nproc-per-node={text}").where == "--nproc-per-node"


@pytest.mark.parametrize(
    ("words", "mode", "start"),
    [
        (("train.py",), Mode.SCRIPT, Start.NURSERY),
        (("-m", "pkg.train"), Mode.MODULE, Start.NURSERY),
        (("--run-path", "train.py"), Mode.RUN_PATH, Start.NURSERY),
        (("--run-path", "--no-python", "train.py"), Mode.RUN_PATH, Start.NURSERY),
        (("--no-python", "./program"), Mode.EXEC, Start.COLD),
        (("--start-method", "fork", "train.py"), Mode.SCRIPT, Start.NURSERY),
        (("--start-method", "spawn", "train.py"), Mode.SCRIPT, Start.COLD),
        (("--start-method", "forkserver", "train.py"), Mode.SCRIPT, Start.COLD),
    ],
)
def test_what_is_run_and_how_it_starts(planned, words, mode, start):
    spec = planned(*words).spec
    assert (spec.mode, spec.terms.start) == (mode, start)
    assert spec.terms.keeper is (start is Start.NURSERY)
    assert spec.terms.shell_codes is (mode is Mode.EXEC)
    assert bool(spec.preload) is (start is Start.NURSERY)


@pytest.mark.parametrize("kind", [ScriptKind.MISSING, ScriptKind.FOLDER, ScriptKind.UNREADABLE])
def test_a_script_that_cannot_be_run(planned, kind):
    assert refused(planned, "train.py", kind=kind, source=None).where == "train.py"
    assert refused(planned, "--no-python", "./program", kind=kind, source=None).where == "./program"
    assert planned("-m", "pkg.train", kind=kind, source=None).spec.mode is Mode.MODULE


def test_a_folder_with_a_main_is_run_as_python_would(planned):
    assert planned("train.py", kind=ScriptKind.ARCHIVE).spec.mode is Mode.RUN_PATH


def test_a_script_without_torch_needs_none_ahead(planned):
    spec = planned(source=b"import json\n").spec
    assert (spec.preload, spec.terms.start, spec.terms.keeper) == ((), Start.NURSERY, False)
    assert planned(torch_installed=False).spec.preload == ()
    assert planned(numpy_installed=False).spec.preload == ("torch",)
    assert planned(source=None).spec.preload == ("torch", "numpy")


def test_constants_hold_from_the_start_and_the_users_own_go_before_defaults(planned):
    source = (
        b"import os\nos.environ.setdefault('OMP_NUM_THREADS', '4')\nos.environ['MKL_DYNAMIC'] = 'FALSE'\nimport torch\n"
    )
    plan_ = planned("--nproc-per-node", "2", source=source)
    assert plan_.spec.environment["MKL_DYNAMIC"] == "FALSE"
    assert any("MKL_DYNAMIC" in notice and "line 3" in notice for notice in plan_.notices)
    environ = {"OMP_NUM_THREADS": "7", "MKL_DYNAMIC": "TRUE"}
    plan_ = planned(source=source, environ=environ)
    assert "OMP_NUM_THREADS" not in plan_.spec.environment
    assert plan_.spec.environment["MKL_DYNAMIC"] == "FALSE"


def test_setdefault_meets_the_number_of_threads_that_torchrun_sets(planned):
    """Under torchrun OMP_NUM_THREADS is set before the script asks, so its `setdefault` changes nothing."""
    source = b"import os\nos.environ.setdefault('OMP_NUM_THREADS', '4')\nimport torch\n"
    assert planned("--nproc-per-node", "2", source=source).spec.environment["OMP_NUM_THREADS"] == "1"
    assert planned("--nproc-per-node", "1", source=source).spec.environment["OMP_NUM_THREADS"] == "4"


def test_what_cannot_be_known_ahead_starts_cold_and_says_so(planned):
    plan_ = planned(source=b"import os\nos.environ['OMP_NUM_THREADS'] = str(f())\nimport torch\n")
    assert (plan_.spec.terms.start, plan_.spec.terms.keeper, plan_.spec.terms.spares) == (Start.COLD, False, 0)
    assert any("OMP_NUM_THREADS" in notice and "line 2" in notice and "cold" in notice for notice in plan_.notices)


def test_removing_a_variable_that_is_not_set_is_no_obstacle(planned):
    source = b"import os\nos.environ.pop('MKL_DYNAMIC', None)\nimport torch\n"
    assert planned(source=source).spec.terms.start is Start.NURSERY
    assert planned(source=source, environ={"MKL_DYNAMIC": "1"}).spec.terms.start is Start.COLD


def test_other_libraries_are_not_imported_ahead_of_their_variables(planned):
    spec = planned(source=b"import os, torch\nos.environ['HF_HOME'] = f()\nimport transformers\n").spec
    assert (spec.terms.start, spec.learn) == (Start.NURSERY, False)


def test_sharing_the_agents_store_can_be_switched_off_as_in_torchrun(planned):
    assert not planned(environ={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}).spec.terms.keeper


# -- terms


def test_without_a_limit_the_budget_decides(planned):
    terms = planned().spec.terms
    assert (terms.max_restarts, terms.budget) == (None, 10)
    assert planned("--max-restarts", "0").spec.terms.max_restarts == 0
    assert planned(environ={"PET_MAX_RESTARTS": "5"}).spec.terms.max_restarts == 5
    assert planned("--budget", "3", "--policy", "stop").spec.terms.budget == 3


def test_spares_are_as_many_as_memory_allows(planned):
    assert planned("--nproc-per-node", "4").spec.terms.spares == 4
    scarce = planned("--nproc-per-node", "4", available_bytes=4 * plan.SPARE_BYTES * 2)
    assert scarce.spec.terms.spares == 2
    assert any("2 instead of 4" in notice for notice in scarce.notices)
    assert planned("--nproc-per-node", "4", "--spares", "4", available_bytes=0).spec.terms.spares == 4
    assert planned("--nproc-per-node", "2", "--spares", "9").spec.terms.spares == 2
    assert planned("--spares", "0").spec.terms.spares == 0
    assert planned("--policy", "stop").spec.terms.spares == 0


def test_the_two_waits_that_users_set(planned):
    limits = planned().spec.terms.limits
    assert (limits.grace_seconds, limits.shutdown_seconds) == (0.05, 30.0)
    limits = planned("--grace", "2", "--shutdown-timeout", "5").spec.terms.limits
    assert (limits.grace_seconds, limits.shutdown_seconds) == (2.0, 5.0)
    variable = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}
    assert planned(environ=variable).spec.terms.limits.shutdown_seconds == 7.0
    assert planned("--shutdown-timeout", "5", environ=variable).spec.terms.limits.shutdown_seconds == 5.0
    refused(planned, environ={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "soon"})


def test_signals(planned):
    assert planned().spec.signals == ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
    assert planned("--signals-to-handle", "SIGTERM, SIGUSR1").spec.signals == ("SIGTERM", "SIGUSR1")


# -- environment


def test_threads_are_limited_as_torchrun_limits_them(planned):
    assert planned("--nproc-per-node", "2").spec.environment["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in planned().spec.environment
    assert "OMP_NUM_THREADS" not in planned("--nproc-per-node", "2", environ={"OMP_NUM_THREADS": "3"}).spec.environment


def test_a_jobs_runs_in_wandb_are_one_unless_the_user_says_otherwise(planned):
    environment = planned().spec.environment
    assert (environment["WANDB_RUN_ID"], environment["WANDB_RESUME"]) == ("job-1", "allow")
    assert not any(name.startswith("WANDB") for name in planned(environ={"WANDB_RUN_ID": "x"}).spec.environment)


def test_a_gpu_for_every_worker(planned):
    refused(planned, "--virtual-local-rank", "--nproc-per-node", "2", environ={"CUDA_VISIBLE_DEVICES": "3"})
    spec = planned("--virtual-local-rank", "--nproc-per-node", "2", environ={"CUDA_VISIBLE_DEVICES": "3,5"}).spec
    assert spec.environment["CUDA_VISIBLE_DEVICES"] == "3,5"


# -- output


def test_streams_by_rank(planned):
    output = planned("--nproc-per-node", "3", "--redirects", "3", "--tee", "0:1,2:2,11:3").output
    assert (output.redirects, output.tee) == ((3, 3, 3), (1, 0, 2))
    output = planned("--local-ranks-filter", "1,0", "--duplicate-stdout-filters", "a,b,,c").output
    assert (output.local_ranks_filter, output.duplicate_stdout_filters) == ((0, 1), ("a", "b,c"))


def test_the_prefix_may_come_from_torchelastics_variable(planned):
    environ = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "${rank}|"}
    assert planned(environ=environ).output.log_line_prefix_template == "${rank}|"
    assert planned("--log-line-prefix-template", "x", environ=environ).output.log_line_prefix_template == "x"


def test_a_plan_can_be_written_down(planned):
    spec = planned("--nproc-per-node", "2", "--name", "mine").spec
    assert msgspec.json.decode(msgspec.json.encode(spec), type=JobSpec) == spec


@pytest.mark.parametrize(
    ("words", "name"),
    [(("train.py",), "train"), (("-m", "pkg.train"), "train"), (("--no-python", "./program"), "program")],
)
def test_a_job_is_called_after_its_script(planned, words, name):
    assert planned(*words).spec.name == name


# -- facts


def test_the_script_is_looked_at_where_python_would_look(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__main__.py").write_text("import json")
    (tmp_path / "empty").mkdir()

    def kind(*words, environ=None):
        seen = machine.script_facts(flags.run_parser(environ={}).parse_args(list(words)), environ or {})
        return seen.kind, seen.source

    assert kind("train.py") == (ScriptKind.FILE, b"import torch")
    assert kind("pkg") == (ScriptKind.ARCHIVE, b"import json")
    assert kind("empty") == (ScriptKind.FOLDER, None)
    assert kind("none.py") == (ScriptKind.MISSING, None)
    assert kind("-m", "pkg") == (ScriptKind.FILE, b"import json")
    assert kind("-m", "nowhere.at_all") == (ScriptKind.UNKNOWN, None)
    assert kind("--no-python", "sh", environ={"PATH": "/bin:/usr/bin"})[0] is ScriptKind.FILE
    assert kind("--no-python", "./train.py")[0] is ScriptKind.UNREADABLE


@pytest.mark.parametrize(
    ("installed", "visible", "count"),
    [(4, None, 4), (4, "", 0), (4, "0,2", 2), (4, "0,9,1", 1), (4, "-1", 0), (2, "GPU-a,GPU-b", 2), (0, "0", 0)],
)
def test_gpus_are_counted_as_cuda_shows_them(installed, visible, count):
    assert machine.visible_gpus(installed, visible) == count


def tree(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


MEMINFO = "MemTotal: 16000000 kB\nMemAvailable: 8000000 kB\n"


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({}, 8000000 * 1024),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
                "sys/fs/cgroup/a/memory.max": "1000000\n",
                "sys/fs/cgroup/a/memory.current": "700000\n",
                "sys/fs/cgroup/a/memory.stat": "anon 1\ninactive_file 200000\n",
            },
            500000,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu,memory:/job\n1:name=systemd:/\n",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "1000000\n",
                "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "1500000\n",
            },
            0,
        ),
    ],
)
def test_memory_within_the_cgroups_limit(tmp_path, files, available):
    assert machine.available_bytes(tree(tmp_path, {"proc/meminfo": MEMINFO, **files})) == available
