"""`holdfast doctor`: what works on this machine, each miss with its fix.

Every check tries the thing itself where that is cheap and harmless, and says what its absence costs. Only a `fail`
keeps Holdfast from running jobs; a `warn` costs speed or evidence.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path

import msgspec

from holdfast.cli import facts

TORCH_SECONDS = 120.0
MUTEX_SECONDS = 5.0
FREE_BYTES = 2**30
_PR_GET_CHILD_SUBREAPER = 37
_PR_SET_CHILD_SUBREAPER = 36
_NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "fuse.sshfs", "9p")

_ASK_TORCH = """
import json, sys
answer = {"python": sys.version.split()[0]}
import torch
answer["torch"] = torch.__version__
import torch.distributed as dist
answer["distributed"] = dist.is_available()
if answer["distributed"]:
    answer["gloo"] = dist.is_gloo_available()
    answer["nccl"] = dist.is_nccl_available()
    answer["group_hooks"] = hasattr(dist.ProcessGroup, "register_pre_hook")
import torch.optim.optimizer as optimizer
answer["optimizer_hooks"] = hasattr(optimizer, "register_optimizer_step_post_hook")
answer["cuda"] = torch.version.cuda
try:
    import numpy
    answer["numpy"] = numpy.__version__
except ImportError:
    pass
print(json.dumps(answer))
"""


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Check(msgspec.Struct, frozen=True):
    name: str
    level: Level
    value: str
    fix: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one document")


def main(namespace: argparse.Namespace) -> int:
    checks = run_checks(os.environ)
    if namespace.json:
        print(msgspec.json.encode({"schema": 1, "checks": checks}).decode())
    else:
        _print(checks)
    return 1 if any(check.level is Level.FAIL for check in checks) else 0


def run_checks(environ: Mapping[str, str]) -> list[Check]:
    return [
        check_python(),
        *check_torch(facts.interpreter(environ)),
        check_pidfd(),
        check_memfd(),
        check_robust_mutex(),
        check_subreaper(),
        check_exit_code(),
        check_memory_events(),
        check_kernel_log(),
        *check_home(home_of(environ)),
        check_titles(),
        check_py_spy(environ),
        check_gpus(environ),
    ]


# -- the interpreter


def check_python(version: tuple[int, ...] = tuple(sys.version_info[:3])) -> Check:
    text = ".".join(map(str, version))
    if version < (3, 11):
        return Check("python", Level.FAIL, text, "Holdfast needs Python 3.11 or newer.")
    if not sys.platform.startswith("linux"):
        return Check("python", Level.FAIL, f"{text} on {sys.platform}", "Holdfast runs jobs on Linux only.")
    return Check("python", Level.OK, text)


def check_torch(python: str) -> list[Check]:
    """Ask the interpreter that workers will run; the launcher itself never imports torch."""
    try:
        done = subprocess.run(
            [python, "-c", _ASK_TORCH], capture_output=True, text=True, timeout=TORCH_SECONDS, check=False
        )
        answer = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 and done.stdout else None
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return [Check("torch", Level.FAIL, f"{python}: {error}", "Check PYTHON_EXEC.")]
    if answer is None:
        last = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        return [Check("torch", Level.WARN, f"not importable: {last}", f"{python} -m pip install 'holdfast[torch]'")]
    return judge_torch(answer)


def judge_torch(answer: Mapping[str, object]) -> list[Check]:
    """What the interpreter answered, as checks."""
    version = str(answer["torch"])
    release = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    old = release < (2, 11)
    checks = [
        Check(
            "torch",
            Level.WARN if old else Level.OK,
            f"{version}, Python {answer['python']}, CUDA {answer.get('cuda') or 'none'}",
            "Holdfast is tested with torch 2.11 and newer." if old else "",
        )
    ]
    if not answer.get("distributed"):
        return [*checks, Check("torch.distributed", Level.FAIL, "not built in", "Install a build of torch with it.")]
    backends = [name for name in ("gloo", "nccl") if answer.get(name)]
    checks.append(
        Check(
            "backends",
            Level.OK if backends else Level.WARN,
            ", ".join(backends) or "neither gloo nor nccl",
            "" if backends else "Workers cannot talk to each other; install another build of torch.",
        )
    )
    collectives = bool(answer.get("group_hooks"))
    checks.append(
        Check(
            "collectives",
            Level.OK if collectives else Level.WARN,
            "process group hooks" if collectives else "no process group hooks",
            "" if collectives else "Whether a survivor hangs in one is then not known before it is asked to leave.",
        )
    )
    steps = bool(answer.get("optimizer_hooks"))
    checks.append(
        Check(
            "step counting",
            Level.OK if steps else Level.WARN,
            "optimizer hooks" if steps else "no optimizer hooks",
            "" if steps else "Progress cannot be seen, so a budget does not refill; use a newer torch.",
        )
    )
    if "numpy" not in answer:
        checks.append(Check("numpy", Level.WARN, "not installed", "pip install numpy, which torch expects."))
    return checks


# -- the kernel


def check_pidfd() -> Check:
    name = "pidfd"
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError) as error:
        return Check(name, Level.FAIL, _reason(error), "Linux 5.3 or newer; in a sandbox, allow pidfd_open.")
    return Check(name, Level.OK, "pidfd_open works")


def check_memfd() -> Check:
    name = "memfd"
    try:
        os.close(os.memfd_create("holdfast-doctor"))
    except (AttributeError, OSError) as error:
        return Check(name, Level.FAIL, _reason(error), "Linux 3.17 or newer; in a sandbox, allow memfd_create.")
    return Check(name, Level.OK, "memfd_create works")


def check_robust_mutex() -> Check:
    """A child takes a mutex and is killed: does the kernel hand it over?"""
    name = "robust mutex"
    fix = "Deaths are seen through pidfds instead, later by what the kernel needs to free memory."
    try:
        from holdfast.worker.board import Board

        board = Board(fd := Board.create())
    except (OSError, AttributeError) as error:
        return Check(name, Level.WARN, _reason(error), fix)
    os.close(fd)
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            board.mutex.hold()
            os.write(tell, b"1")
            signal.pause()
        os._exit(1)
    os.close(tell)
    held = os.read(ready, 1) == b"1"
    os.close(ready)
    os.kill(child, signal.SIGKILL)
    answers: list[bool] = []
    waiter = threading.Thread(target=lambda: answers.append(board.mutex.outlive()), daemon=True)
    waiter.start()
    waiter.join(MUTEX_SECONDS)
    os.waitpid(child, 0)
    if held and answers == [True]:
        return Check(name, Level.OK, "a killed holder is seen at once")
    return Check(name, Level.WARN, "a killed holder is not seen", fix)


def check_subreaper() -> Check:
    name = "subreaper"
    libc = ctypes.CDLL(None, use_errno=True)
    before = ctypes.c_int(0)
    if libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0) or libc.prctl(
        _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0
    ):
        return Check(name, Level.FAIL, os.strerror(ctypes.get_errno()), "Linux 3.4 or newer; allow prctl.")
    libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)
    return Check(name, Level.OK, "orphans come to the agent")


def check_exit_code() -> Check:
    """Whether a dead process's status can be read before it is collected."""
    name = "early exit status"
    fix = "The cause of a death is then known only when the process is fully gone."
    child = os.fork()
    if child == 0:
        os._exit(7)
    try:
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        # Fields are counted from behind the name, which may contain anything. The last is the wait status.
        status = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[49]
    except (OSError, IndexError) as error:
        return Check(name, Level.WARN, _reason(error), fix)
    finally:
        os.waitpid(child, 0)
    if status == str(7 << 8):
        return Check(name, Level.OK, "/proc/PID/stat shows it")
    return Check(name, Level.WARN, "/proc/PID/stat hides it", f"{fix} It takes CAP_SYS_PTRACE or the same user.")


def check_memory_events(root: str = "/") -> Check:
    """Whether a kill by the kernel for lack of memory can be told from another SIGKILL."""
    name = "memory events"
    at = _memory_cgroup(root)
    for path in at:
        if path.is_file() and os.access(path, os.R_OK):
            return Check(name, Level.OK, str(path))
    return Check(
        name,
        Level.WARN,
        "no memory.events or memory.oom_control for this cgroup",
        "An out-of-memory kill then looks like any SIGKILL; mount the memory cgroup to tell them apart.",
    )


def _memory_cgroup(root: str) -> list[Path]:
    found = []
    try:
        lines = Path(root, "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        inner = path.strip("/")
        if not controllers:
            for base in ("sys/fs/cgroup", "sys/fs/cgroup/unified"):
                found += [Path(root, base, inner, "memory.events"), Path(root, base, "memory.events")]
        elif "memory" in controllers.split(","):
            base = "sys/fs/cgroup/memory"
            found += [Path(root, base, inner, "memory.oom_control"), Path(root, base, "memory.oom_control")]
    return found


def check_kernel_log() -> Check:
    name = "kernel log"
    try:
        os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        return Check(
            name,
            Level.WARN,
            _reason(error),
            "GPU errors (Xid) and out-of-memory kills cannot be quoted: sysctl kernel.dmesg_restrict=0, or run as a "
            "user with CAP_SYSLOG.",
        )
    return Check(name, Level.OK, "/dev/kmsg is readable")


# -- files


def home_of(environ: Mapping[str, str]) -> Path:
    from holdfast.adapters.home import Home

    return Home.find(environ).root


def check_home(home: Path) -> list[Check]:
    """Journals are written here; the nearest folder that exists says whether they can be."""
    fix = "Set HOLDFAST_HOME to a folder on a local disk."
    existing = next((folder for folder in (home, *home.parents) if folder.exists()), Path("/"))
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"\0")
    except OSError as error:
        return [
            Check(
                "home", Level.WARN, f"{home}: {_reason(error)}", f"{fix} Until then records go to a temporary folder."
            )
        ]
    kind = file_system_of(existing, _mounts())
    network = kind in _NETWORK_FILE_SYSTEMS
    free = shutil.disk_usage(existing).free
    scarce = free < FREE_BYTES
    return [
        Check("home", Level.WARN if network else Level.OK, f"{home} ({kind})", fix if network else ""),
        Check(
            "disk",
            Level.WARN if scarce else Level.OK,
            f"{free / 2**30:.1f} GiB free",
            "Free some space; a job goes on without its records, but then there are none." if scarce else "",
        ),
    ]


def file_system_of(path: Path, mounts: str) -> str:
    """The type of the mount that holds the path: the longest mount point above it, the last if there are several."""
    best, kind = "", "unknown"
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point = fields[1].encode().decode("unicode_escape")
        if path.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


def _mounts() -> str:
    try:
        return Path("/proc/self/mounts").read_text()
    except OSError:
        return ""


# -- what is nice to have


def check_titles() -> Check:
    try:
        import setproctitle
    except ImportError:
        return Check("process titles", Level.WARN, "no setproctitle", "pip install setproctitle, to read `ps` by rank.")
    return Check("process titles", Level.OK, f"setproctitle {getattr(setproctitle, '__version__', '')}".strip())


def check_py_spy(environ: Mapping[str, str]) -> Check:
    path = shutil.which("py-spy", path=environ.get("PATH")) or shutil.which(
        "py-spy", path=os.path.dirname(sys.executable)
    )
    return Check("py-spy", Level.OK, path or "not installed; optional, stacks come from faulthandler")


def check_gpus(environ: Mapping[str, str]) -> Check:
    count = facts.gpu_count(environ)
    return Check("GPUs", Level.OK, f"{count}" if count else "none; `--nproc-per-node auto` counts processors")


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)


# -- printing

_MARKS: Mapping[Level, tuple[str, str]] = {
    Level.OK: ("✓", "green"),
    Level.WARN: ("!", "yellow"),
    Level.FAIL: ("✗", "red"),
}


def _print(checks: list[Check]) -> None:
    width = max(len(check.name) for check in checks)
    paint: Callable[[str, str], str] = _colour if sys.stdout.isatty() and "NO_COLOR" not in os.environ else _plain
    for check in checks:
        mark, colour = _MARKS[check.level]
        print(f"{paint(mark, colour)} {check.name:<{width}}  {check.value}")
        if check.fix:
            print(f"  {'':<{width}}  → {check.fix}")


def _plain(text: str, _colour_name: str) -> str:
    return text


def _colour(text: str, name: str) -> str:
    return f"\x1b[{ {'green': 32, 'yellow': 33, 'red': 31}[name] }m{text}\x1b[0m"
