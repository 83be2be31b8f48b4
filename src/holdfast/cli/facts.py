"""What the plan must know of the machine and the script, gathered once, before anything is decided.

Never imports torch: GPUs are counted through NVML, and installed packages by looking for their folders.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import uuid
import zipfile
from collections.abc import Mapping
from enum import StrEnum

import msgspec

from holdfast.model.errors import UsageError

_SOURCE_LIMIT_BYTES = 8 * 1024 * 1024


class ScriptKind(StrEnum):
    FILE = "file"
    ARCHIVE = "archive"  # a zip file or a folder with a __main__.py
    FOLDER = "folder"  # without one
    MISSING = "missing"
    UNREADABLE = "unreadable"
    UNKNOWN = "unknown"  # a module that only the import system can find


class ScriptFacts(msgspec.Struct, frozen=True):
    kind: ScriptKind
    source: bytes | None = None


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True):
    cpu_count: int
    available_bytes: int
    gpu_count: int
    torch_installed: bool
    numpy_installed: bool
    hostname: str
    is_tty: bool
    python: str
    cwd: str
    script: ScriptFacts
    run_id: str  # fresh, for a rendezvous that nobody named
    python_found: bool = True
    device_counts: dict[str, int] = {}  # of device types that only torch itself can count


def gather(namespace: argparse.Namespace, environ: Mapping[str, str]) -> MachineFacts:
    python = interpreter(environ) if not namespace.run_path else sys.executable
    own = os.path.realpath(python) == os.path.realpath(sys.executable)
    wants_gpus = namespace.nproc_per_node in ("auto", "gpu") or namespace.numa_binding is not None
    device = namespace.nproc_per_node
    other = not wants_gpus and device != "cpu" and not re.fullmatch(r"\s*[+-]?\d+\s*", device)
    return MachineFacts(
        cpu_count=cpu_count(),
        available_bytes=available_bytes(),
        gpu_count=gpu_count(environ) if wants_gpus else 0,
        torch_installed=not own or importlib.util.find_spec("torch") is not None,
        numpy_installed=not own or importlib.util.find_spec("numpy") is not None,
        hostname=socket.gethostname(),
        is_tty=sys.stdout.isatty(),
        python=python,
        python_found=shutil.which(python) is not None,
        cwd=_folder(),
        script=script_facts(namespace, environ),
        run_id=str(uuid.uuid4()),
        device_counts={device: ask_torch(python, device)} if other and re.fullmatch(r"[a-z0-9_]+", device) else {},
    )


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise UsageError("the current folder has been removed", remedy="Change to one that is there.") from None


def interpreter(environ: Mapping[str, str]) -> str:
    return environ.get("PYTHON_EXEC") or sys.executable


# -- counting


def cpu_count() -> int:
    """Processors this process may use, as torch counts them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_bytes(root: str = "/") -> int:
    """Memory that can still be had: the machine's, or what the cgroup leaves of its limit."""
    available = 0
    for line in _lines(os.path.join(root, "proc/meminfo")):
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    return min([available, *_cgroup_headroom(root)])


def _cgroup_headroom(root: str) -> list[int]:
    """What each limit on the way up leaves; page cache that can be dropped does not count as used."""
    headroom = []
    for line in _lines(os.path.join(root, "proc/self/cgroup")):
        _, controllers, path = line.strip().split(":", 2)
        if controllers == "":
            base, limit, used, cache = "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            base, limit, used, cache = (
                "sys/fs/cgroup/memory",
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file",
            )
        else:
            continue
        folder = path.strip("/")
        while True:
            at = os.path.join(root, base, folder)
            bound, usage = _number(os.path.join(at, limit)), _number(os.path.join(at, used))
            if bound is not None and usage is not None:
                dropped = sum(
                    int(entry.split()[1])
                    for entry in _lines(os.path.join(at, "memory.stat"))
                    if entry.split()[0] == cache
                )
                headroom.append(max(0, bound - max(0, usage - dropped)))
            if not folder:
                break
            folder = os.path.dirname(folder)
    return headroom


def gpu_count(environ: Mapping[str, str]) -> int:
    return visible_gpus(_nvml_count() or _proc_count(), environ.get("CUDA_VISIBLE_DEVICES"))


def visible_gpus(installed: int, visible: str | None) -> int:
    """How many of the installed GPUs CUDA shows: the list up to its first entry that names none."""
    if visible is None:
        return installed
    shown: list[str] = []
    for entry in visible.split(","):
        name = entry.strip()
        is_index = name.isdigit() and int(name) < installed
        if name in shown or not (is_index or name.startswith(("GPU-", "MIG-"))):
            break
        shown.append(name)
    return min(len(shown), installed) if installed else 0


def _nvml_count() -> int:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return 0
    if nvml.nvmlInit_v2() != 0:
        return 0
    count = ctypes.c_uint(0)
    status = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    nvml.nvmlShutdown()
    return count.value if status == 0 else 0


def _proc_count() -> int:
    try:
        return len(os.listdir("/proc/driver/nvidia/gpus"))
    except OSError:
        return 0


def ask_torch(python: str, device: str) -> int:
    """How many devices of a type that needs torch to be counted. Costs an import of torch in another process."""
    program = (
        "import sys, torch\n"
        "module = getattr(torch, sys.argv[1], None)\n"
        "print(module.device_count() if module is not None and module.is_available() else 0)"
    )
    try:
        answer = subprocess.run(
            [python, "-c", program, device], capture_output=True, text=True, timeout=120, check=False
        ).stdout.split()
        return int(answer[-1]) if answer else 0
    except (OSError, subprocess.SubprocessError, ValueError):
        return 0


# -- the script


def script_facts(namespace: argparse.Namespace, environ: Mapping[str, str]) -> ScriptFacts:
    name = namespace.training_script
    if namespace.run_path or not (namespace.module or namespace.no_python):
        return _of_path(name)
    if namespace.module:
        return _of_module(name, environ)
    found = shutil.which(name, path=environ.get("PATH"))
    if found:
        return ScriptFacts(ScriptKind.FILE)
    if os.path.isdir(name):
        return ScriptFacts(ScriptKind.FOLDER)
    return ScriptFacts(ScriptKind.UNREADABLE if os.path.exists(name) else ScriptKind.MISSING)


def _of_path(path: str) -> ScriptFacts:
    try:
        if os.path.isdir(path):
            main = os.path.join(path, "__main__.py")
            if not os.path.isfile(main):
                return ScriptFacts(ScriptKind.FOLDER)
            return ScriptFacts(ScriptKind.ARCHIVE, _read(main))
        if not os.path.exists(path):
            return ScriptFacts(ScriptKind.MISSING)
        if os.path.isfile(path) and zipfile.is_zipfile(path):
            return ScriptFacts(ScriptKind.ARCHIVE, _read_archive(path))
        # A pipe (`<(...)`) can be read only once, by the one worker that will.
        return ScriptFacts(ScriptKind.FILE, _read(path) if os.path.isfile(path) else None)
    except OSError:
        return ScriptFacts(ScriptKind.UNREADABLE)


def _of_module(name: str, environ: Mapping[str, str]) -> ScriptFacts:
    """Look where `python -m` would, without importing the packages on the way."""
    relative = name.replace(".", os.sep)
    folders = [_folder(), *environ.get("PYTHONPATH", "").split(os.pathsep), *sys.path]
    for folder in filter(None, folders):
        for candidate in (f"{relative}.py", os.path.join(relative, "__main__.py")):
            path = os.path.join(folder, candidate)
            if os.path.isfile(path):
                with contextlib.suppress(OSError):
                    return ScriptFacts(ScriptKind.FILE, _read(path))
    return ScriptFacts(ScriptKind.UNKNOWN)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(_SOURCE_LIMIT_BYTES)


def _read_archive(path: str) -> bytes | None:
    with contextlib.suppress(KeyError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        return archive.read("__main__.py")
    return None


def _lines(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.readlines()
    except OSError:
        return []


def _number(path: str) -> int | None:
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].strip().isdigit() else None
