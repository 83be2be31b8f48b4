"""From a command line and the facts of a machine to the job that will be run: `make_plan`.

Purely computational. It decides what every flag means together with the others, refuses what cannot mean anything, and
says in `notices` where it does something the user might not expect. It starts nothing and looks at nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
from collections.abc import Mapping

import msgspec

from holdfast.cli import scan
from holdfast.cli.facts import MachineFacts, ScriptKind
from holdfast.model.errors import Unsupported, UsageError
from holdfast.model.ids import JobId
from holdfast.model.output import OutputPlan
from holdfast.model.spec import JobSpec, Limits, Mode, Start, Terms

SPARE_BYTES = 120 * 2**20  # private memory of a forked process that has imported torch and run one backward pass
SPARES_SHARE = 4  # spares together get one part in so many of what is available
DEFAULT_SHUTDOWN_SECONDS = 30.0
BACKENDS = ("static", "c10d", "etcd", "etcd-v2")
LOOPBACK = "127.0.0.1"
_DEVICE_LISTS = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    spec: JobSpec
    output: OutputPlan
    notices: tuple[str, ...] = ()
    sources: dict[str, str] = {}  # where a value comes from, by the name of a field of Terms or Limits
    json: bool = False
    dry_run: bool = False


def make_plan(namespace: argparse.Namespace, environ: Mapping[str, str], facts: MachineFacts, job_id: str) -> Plan:
    notices: list[str] = []
    _check_nodes(namespace, notices)
    mode = _mode(namespace, facts)
    if not facts.python_found:
        raise UsageError(
            f"{facts.python!r} cannot be executed",
            where="PYTHON_EXEC",
            why="Workers run in the interpreter that this variable names.",
            remedy="Unset it, or give the path of a Python that is there.",
        )
    world = _world(namespace, facts)
    master_addr, master_port, run_id = _rendezvous(namespace, facts, notices)
    seen = _scan(mode, facts)
    name = namespace.name or _name(namespace, mode)
    environment = _environment(namespace, environ, world, job_id, name, notices)
    start, preload, learn = _start(namespace, environ, mode, seen, facts, environment, notices)
    sources: dict[str, str] = {}
    terms = Terms(
        world=world,
        start=start,
        keeper=start is Start.NURSERY
        and "torch" in preload
        and environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0") != "1",
        spares=_spares(namespace, start, mode, world, facts, notices, sources),
        max_restarts=namespace.max_restarts,
        budget=namespace.budget,
        policy=namespace.policy,
        shell_codes=mode is Mode.EXEC,
        limits=_limits(namespace, environ, sources),
    )
    _check_restarts(namespace)
    sources["max_restarts"] = _given(namespace, "max_restarts", "--max-restarts", "not set: the budget decides")
    sources["budget"] = _given(namespace, "budget", "--budget", "default")
    spec = JobSpec(
        job_id=JobId(job_id),
        name=name,
        mode=mode,
        script=namespace.training_script,
        arguments=tuple(namespace.training_script_args),
        python=facts.python,
        cwd=facts.cwd,
        role=namespace.role,
        run_id=run_id,
        master_addr=master_addr,
        master_port=master_port,
        environment=environment,
        terms=terms,
        preload=preload,
        learn=learn,
        allow_drills=namespace.allow_drills,
        virtual_local_rank=namespace.virtual_local_rank,
        spare_context=_spare_context(namespace, start),
        signals=_signals(namespace.signals_to_handle),
        numa_binding=_numa_binding(namespace, world, facts),
    )
    return Plan(
        spec=spec,
        output=_output(namespace, environ, world, notices),
        notices=tuple(notices),
        sources=sources,
        json=namespace.json,
        dry_run=namespace.dry_run,
    )


def _spare_context(namespace: argparse.Namespace, start: Start) -> bool:
    if namespace.spare_context and (start is Start.COLD or namespace.virtual_local_rank):
        what = "--virtual-local-rank" if namespace.virtual_local_rank else "a cold start"
        raise UsageError(
            f"cannot be had together with {what}",
            where="--spare-context",
            why="A context belongs to a device that is chosen before the spare knows what it will be.",
            remedy="Leave out one of the two.",
        )
    return bool(namespace.spare_context)


# -- nodes and rendezvous


def _check_nodes(namespace: argparse.Namespace, notices: list[str]) -> None:
    text = namespace.nnodes
    bounds = re.fullmatch(r"\s*(\d+)\s*(?::\s*(\d+)\s*)?", text)
    lowest, highest = (int(bounds[1]), int(bounds[2] or bounds[1])) if bounds else (0, 0)
    if not 0 < lowest <= highest:
        raise UsageError(
            f"{text!r} is not a number of nodes", where="--nnodes", remedy="Give a number, or MIN:MAX; here 1 or 1:1."
        )
    if highest > 1:
        raise Unsupported(
            f"{text} asks for several nodes, and Holdfast keeps jobs on one node for now",
            where="--nnodes",
            remedy="Give `--nnodes 1`, or start this job with torchrun until several nodes are supported.",
        )
    # A rank other than 0 means something only to a static rendezvous; torchrun ignores it elsewhere.
    if namespace.node_rank and _is_static(namespace):
        raise UsageError(
            f"there is no node {namespace.node_rank} among one node",
            where="--node-rank",
            why="Nodes count from 0, and `--nnodes` is 1.",
            remedy="Give `--node-rank 0`, or leave it out.",
        )
    if namespace.node_rank:
        notices.append(f"--node-rank {namespace.node_rank} is ignored: a {_backend(namespace)} rendezvous ranks nodes")


def _is_static(namespace: argparse.Namespace) -> bool:
    """Whether torchrun would take the address as given: a static backend without any turns into c10d."""
    chosen = namespace.rdzv_endpoint or namespace.master_port is not None or namespace.node_rank
    return not namespace.standalone and namespace.rdzv_backend == "static" and bool(chosen)


def _backend(namespace: argparse.Namespace) -> str:
    return "c10d" if namespace.standalone else str(namespace.rdzv_backend)


def _rendezvous(namespace: argparse.Namespace, facts: MachineFacts, notices: list[str]) -> tuple[str, int, str]:
    """MASTER_ADDR, MASTER_PORT (0: any free one) and the run id, as torchrun would choose them."""
    backend = _backend(namespace)
    if backend not in BACKENDS:
        raise UsageError(
            f"{backend!r} is not a rendezvous backend that Holdfast knows",
            where="--rdzv-backend",
            why="Backends of torchrun plug-ins are classes of torch, which the launcher never imports.",
            remedy=f"One node needs none: leave it out, or give one of {', '.join(BACKENDS)}.",
        )
    _check_rdzv_conf(namespace.rdzv_conf)
    if _is_static(namespace):
        default_port = 29500 if namespace.master_port is None else namespace.master_port
        endpoint = namespace.rdzv_endpoint or f"{namespace.master_addr}:{default_port}"
        host, port = _endpoint(endpoint)
        if port is None:
            raise UsageError(
                f"the port is missing in {endpoint!r}",
                where="--rdzv-endpoint",
                remedy="Give HOST:PORT, or `--standalone` for any free port.",
            )
        return host, port, namespace.rdzv_id
    if namespace.standalone or namespace.rdzv_backend == "static":
        if "rdzv_id" in namespace.given:
            notices.append("--rdzv-id gives way to a fresh id, as it does in torchrun")
        run_id = facts.run_id
    else:
        _endpoint(namespace.rdzv_endpoint)
        run_id = namespace.rdzv_id
    if "master_addr" in namespace.given and namespace.master_addr not in (LOOPBACK, "localhost"):
        notices.append("--master-addr counts only together with --master-port: workers meet on this machine")
    if backend.startswith("etcd"):
        notices.append(f"no {backend} server is asked: one node needs no rendezvous")
    return namespace.local_addr or LOOPBACK, 0, run_id


def _endpoint(text: str) -> tuple[str, int | None]:
    match = re.fullmatch(r"\s*(\[[0-9A-Fa-f:.%]+\]|[^:\s]*)(?::(\d+))?\s*", text)
    port = int(match[2]) if match and match[2] else None
    if not match or (port or 0) > 65535:
        raise UsageError(
            f"{text!r} is not an address", where="--rdzv-endpoint", remedy="Give HOST:PORT, with IPv6 in brackets."
        )
    return match[1].strip("[]") or LOOPBACK, port


def _check_rdzv_conf(text: str) -> None:
    for pair in text.strip().split(",") if text.strip() else ():
        key, _, value = pair.partition("=")
        if not key.strip() or not value.strip():
            raise UsageError(f"{pair!r} is not KEY=VALUE", where="--rdzv-conf", remedy="Give KEY=VALUE,KEY=VALUE.")


# -- what to run


def _mode(namespace: argparse.Namespace, facts: MachineFacts) -> Mode:
    if namespace.run_path:
        mode = Mode.RUN_PATH
    elif namespace.no_python and namespace.module:
        raise UsageError(
            "a module needs Python", where="--no-python", remedy="Leave out either `--no-python` or `--module`."
        )
    elif namespace.no_python:
        mode = Mode.EXEC
    else:
        mode = Mode.MODULE if namespace.module else Mode.SCRIPT
    script, kind = namespace.training_script, facts.script.kind
    if mode is Mode.MODULE:
        return mode
    what = "program" if mode is Mode.EXEC else "script"
    if kind is ScriptKind.MISSING:
        raise UsageError(
            f"there is no such {what}",
            where=script,
            why=f"Looked in {facts.cwd}." if mode is not Mode.EXEC or "/" in script else "Looked along PATH.",
            remedy="" if mode is Mode.EXEC else "For a module, give `-m`.",
        )
    if kind is ScriptKind.FOLDER:
        raise UsageError(
            f"this is a folder, not a {what}",
            where=script,
            remedy="" if mode is Mode.EXEC else "Name the script in it, or put a __main__.py there.",
        )
    if kind is ScriptKind.UNREADABLE:
        raise UsageError(
            f"this {what} cannot be {'executed' if mode is Mode.EXEC else 'read'}",
            where=script,
            remedy=f"Check its permissions: chmod +{'x' if mode is Mode.EXEC else 'r'} {script}",
        )
    # Python runs a folder or a zip file with a __main__.py; runpy is how.
    return Mode.RUN_PATH if kind is ScriptKind.ARCHIVE and mode is Mode.SCRIPT else mode


def _name(namespace: argparse.Namespace, mode: Mode) -> str:
    script: str = namespace.training_script
    if mode is Mode.MODULE:
        return script.rpartition(".")[2] or script
    stem, extension = os.path.splitext(os.path.basename(script.rstrip("/")))
    return (stem if extension in (".py", ".pyc", ".pyz", ".zip", ".sh") else stem + extension) or "job"


def _world(namespace: argparse.Namespace, facts: MachineFacts) -> int:
    text = namespace.nproc_per_node.strip()
    where = "--nproc-per-node"
    if re.fullmatch(r"[+-]?\d+", text):
        if int(text) < 1:
            raise UsageError(f"{text} workers cannot be started", where=where, remedy="Give 1 or more.")
        return int(text)
    if text == "cpu":
        return facts.cpu_count
    if text == "auto":
        return facts.gpu_count or facts.cpu_count
    if text == "gpu":
        if not facts.gpu_count:
            raise UsageError(
                "there is no GPU that CUDA would show",
                where=where,
                why="NVML knows of none, or CUDA_VISIBLE_DEVICES hides them all.",
                remedy="Give a number or `cpu`; `nvidia-smi` and `holdfast doctor` tell more.",
            )
        return facts.gpu_count
    if facts.device_counts.get(text):
        return facts.device_counts[text]
    raise UsageError(
        f"{text!r} is neither a number nor a kind of device that torch finds here",
        where=where,
        remedy="Give a number, `auto`, `gpu` or `cpu`.",
    )


def _scan(mode: Mode, facts: MachineFacts) -> scan.Scan:
    if mode is Mode.EXEC:
        return scan.Scan(may_import_torch=False)
    return scan.Scan() if facts.script.source is None else scan.scan(facts.script.source)


def _start(
    namespace: argparse.Namespace,
    environ: Mapping[str, str],
    mode: Mode,
    seen: scan.Scan,
    facts: MachineFacts,
    environment: dict[str, str],
    notices: list[str],
) -> tuple[Start, tuple[str, ...], bool]:
    """How workers come to life, what is imported ahead of them, and whether more may be learned.

    Constants that the script sets before it imports torch are added to `environment`.
    """
    if mode is Mode.EXEC or namespace.start_method in ("spawn", "forkserver"):
        return Start.COLD, (), False
    if not (seen.may_import_torch and facts.torch_installed):
        return Start.NURSERY, (), True
    inherited = {**environ, **environment}
    for obstacle in seen.obstacles:
        if obstacle.removes and obstacle.name is not None and obstacle.name not in inherited:
            continue
        if obstacle.name is None:
            where = f"line {obstacle.line} of the script changes the environment before torch is imported"
        else:
            where = f"line {obstacle.line} of the script sets {obstacle.name}, which imports read"
        notices.append(f"{where}, and {obstacle.why}: workers start cold, so restarts import torch again")
        return Start.COLD, (), False
    for setting in seen.settings:
        if (setting.only_if_unset and setting.name in inherited) or inherited.get(setting.name) == setting.value:
            continue
        environment[setting.name] = setting.value
        notices.append(f"{setting.name} has its value from line {setting.line} of the script from the start")
    learn = not seen.library_obstacles
    if not learn:
        first = seen.library_obstacles[0]
        what = f"{first.name} is set" if first.name else "the environment is changed"
        notices.append(
            f"{what} on line {first.line} of the script, and {first.why}: only torch and numpy are imported ahead"
        )
    return Start.NURSERY, ("torch", "numpy") if facts.numpy_installed else ("torch",), learn


# -- terms


def _check_restarts(namespace: argparse.Namespace) -> None:
    if namespace.max_restarts is None:
        return
    if namespace.max_restarts < 0:
        raise UsageError(f"{namespace.max_restarts} is below 0", where="--max-restarts", remedy="Give 0 or more.")
    if "budget" in namespace.given:
        raise UsageError(
            "--max-restarts and --budget exclude each other",
            why="A given limit is hard; a budget is refilled by progress.",
            remedy="Leave out one of them.",
        )


def _spares(
    namespace: argparse.Namespace,
    start: Start,
    mode: Mode,
    world: int,
    facts: MachineFacts,
    notices: list[str],
    sources: dict[str, str],
) -> int:
    asked: int | None = namespace.spares
    if asked is not None:
        if asked and mode is Mode.EXEC:
            raise UsageError(
                "a program cannot be kept warm",
                where="--spares",
                why="With --no-python nothing of it can be loaded ahead.",
                remedy="Give `--spares 0`, or leave it out.",
            )
        if asked and namespace.start_method in ("spawn", "forkserver"):
            raise UsageError(
                f"--start-method {namespace.start_method} and --spares exclude each other",
                why="Spares are forked from the nursery, and this method does without one.",
                remedy="Leave out one of them.",
            )
        sources["spares"] = "--spares"
        if asked and start is Start.COLD:
            notices.append("no spares are kept, since workers start cold")
            return 0
        if asked > world:
            notices.append(f"{world} of {asked} spares are kept: there are no more workers to replace")
            return world
        return asked
    if start is Start.COLD or namespace.policy == "stop":
        sources["spares"] = "workers start cold" if start is Start.COLD else "--policy stop replaces nobody"
        return 0
    affordable = facts.available_bytes // SPARES_SHARE // SPARE_BYTES
    if affordable < world:
        notices.append(
            f"{affordable} instead of {world} spares are kept: "
            f"{facts.available_bytes / 2**30:.1f} GiB of memory are available"
        )
        sources["spares"] = "memory"
        return affordable
    sources["spares"] = "one per worker"
    return world


def _limits(namespace: argparse.Namespace, environ: Mapping[str, str], sources: dict[str, str]) -> Limits:
    variable = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
    shutdown = DEFAULT_SHUTDOWN_SECONDS
    sources["grace_seconds"] = _given(namespace, "grace", "--grace", "default")
    sources["shutdown_seconds"] = "default"
    if namespace.shutdown_timeout is not None:
        shutdown, sources["shutdown_seconds"] = float(namespace.shutdown_timeout), "--shutdown-timeout"
    elif variable in environ:
        try:
            shutdown, sources["shutdown_seconds"] = float(int(environ[variable])), variable
        except ValueError:
            raise UsageError(
                f"{environ[variable]!r} is not a number of seconds", where=variable, remedy="Correct it, or unset it."
            ) from None
    if shutdown < 0:
        raise UsageError("a time cannot be below 0", where=sources["shutdown_seconds"], remedy="Give 0 or more.")
    return Limits(grace_seconds=namespace.grace, shutdown_seconds=shutdown)


def _given(namespace: argparse.Namespace, dest: str, given: str, otherwise: str) -> str:
    return given if dest in namespace.given else otherwise


def _signals(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in signal.Signals.__members__:
            raise UsageError(f"{name!r} is not a signal here", where="--signals-to-handle", remedy="See `kill -l`.")
        if name in ("SIGKILL", "SIGSTOP"):
            raise UsageError(f"{name} cannot be handled", where="--signals-to-handle", remedy="Leave it out.")
    return names


def _numa_binding(namespace: argparse.Namespace, world: int, facts: MachineFacts) -> str | None:
    binding: str | None = namespace.numa_binding
    if binding is not None and facts.gpu_count < world:
        raise UsageError(
            f"{world} workers cannot be bound near {facts.gpu_count} GPUs",
            where="--numa-binding",
            why="A worker is bound to the processors next to the GPU of its local rank.",
            remedy="Leave it out, or give `--nproc-per-node gpu` on a machine with GPUs.",
        )
    return binding


# -- environment


def _environment(
    namespace: argparse.Namespace,
    environ: Mapping[str, str],
    world: int,
    job_id: str,
    name: str,
    notices: list[str],
) -> dict[str, str]:
    """What holds for every process of the job, on top of the launcher's own environment."""
    environment = {
        "HOLDFAST_JOB_ID": job_id,
        "HOLDFAST_JOB_NAME": name,
        "TORCHELASTIC_SIGNALS_TO_HANDLE": namespace.signals_to_handle,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
    if world > 1 and "OMP_NUM_THREADS" not in environ:
        environment["OMP_NUM_THREADS"] = "1"
        notices.append("OMP_NUM_THREADS=1 for each worker, as torchrun does; set it yourself to change that")
    # W&B goes on with a run of a known id. MLflow knows only ids that its server has given out (MLFLOW_RUN_ID), and
    # TensorBoard only folders: for both a script can build on HOLDFAST_JOB_ID.
    if not {"WANDB_RUN_ID", "WANDB_RESUME", "WANDB_SWEEP_ID"} & set(environ):
        environment |= {"WANDB_RUN_ID": job_id, "WANDB_RESUME": "allow"}
    if namespace.virtual_local_rank:
        environment |= {name: environ[name] for name in _DEVICE_LISTS if name in environ}
        listed = next((name for name in _DEVICE_LISTS if environ.get(name)), "CUDA_VISIBLE_DEVICES")
        devices = environ[listed].split(",") if listed in environ else None
        if devices is not None and len(devices) < world:
            raise UsageError(
                f"{world} workers need a GPU each, and {listed}={environ[listed]} lists {len(devices)}",
                where="--virtual-local-rank",
                remedy=f"List more devices, or give `--nproc-per-node {len(devices)}`.",
            )
    return environment


# -- output


def _output(namespace: argparse.Namespace, environ: Mapping[str, str], world: int, notices: list[str]) -> OutputPlan:
    if namespace.logs_specs is not None:
        raise Unsupported(
            "plug-ins for output are not supported",
            where="--logs-specs",
            why="They are classes of torch, which the launcher never imports.",
            remedy="Use --redirects, --tee and --log-dir.",
        )
    if namespace.event_log_handler != "null":
        notices.append(
            f"--event-log-handler {namespace.event_log_handler} gets no events: see `holdfast incidents` instead"
        )
    return OutputPlan(
        redirects=_streams("--redirects", namespace.redirects, world),
        tee=_streams("--tee", namespace.tee, world),
        log_dir=namespace.log_dir,
        local_ranks_filter=_ranks(namespace.local_ranks_filter),
        log_line_prefix_template=namespace.log_line_prefix_template
        or environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", ""),
        duplicate_stdout_filters=tuple(namespace.duplicate_stdout_filters),
        duplicate_stderr_filters=tuple(namespace.duplicate_stderr_filters),
    )


def _streams(flag: str, text: str, world: int) -> tuple[int, ...]:
    """0 none, 1 stdout, 2 stderr, 3 both: one value for all, or one by local rank and none for the rest."""
    if re.fullmatch(r"[0-3]", text):
        return (int(text),) * world
    if re.fullmatch(r"(\d+:[0-3],)*\d+:[0-3]", text):
        by_rank = dict(part.split(":") for part in text.split(","))
        return tuple(int(by_rank.get(str(rank), "0")) for rank in range(world))
    raise UsageError(
        f"{text!r} names no streams",
        where=flag,
        remedy="Give 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or RANK:VALUE,RANK:VALUE.",
    )


def _ranks(text: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(part) for part in text.split(",")})) if text else ()
    except ValueError:
        raise UsageError(
            f"{text!r} is not a list of ranks", where="--local-ranks-filter", remedy="Give numbers, as in 0,1,2."
        ) from None
