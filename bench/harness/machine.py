"""What the numbers were measured on, and how busy it was with other things."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUSY_SECONDS = 0.5
PROBE_SECONDS = 120.0


def describe() -> dict:
    """The machine and the software, with an id by which a later run knows that it is on the same one."""
    found = {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _field("/proc/cpuinfo", "model name"),
        "memory_gb": round(int(_field("/proc/meminfo", "MemTotal").split()[0]) / 2**20, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": _in_python("import torch; print(torch.__version__)"),
        "cuda": _in_python("import torch; print(torch.cuda.get_device_name(0) if torch.cuda.is_available() else '')"),
    }
    with contextlib.suppress(OSError), open("/etc/machine-id") as file:
        found["machine"] = file.read().strip()
    identity = "|".join(str(found[name]) for name in sorted(found))
    return {**found, "id": hashlib.sha256(identity.encode()).hexdigest()[:12]}


def code() -> dict:
    """The commit, and a digest of the code that is measured: rows are kept for as long as neither has changed.

    The digest covers what a commit's name does not while the tree has changes that are not committed.
    """
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    digest = hashlib.sha256()
    for path in sorted(_measured_files()):
        with open(path, "rb") as file:
            digest.update(os.path.relpath(path, ROOT).encode() + b"\0" + file.read())
    return {"commit": commit or "none", "digest": digest.hexdigest()[:12]}


def help_of_run() -> str:
    holdfast = os.path.join(os.path.dirname(sys.executable), "holdfast")
    try:
        return subprocess.run([holdfast, "run", "--help"], capture_output=True, text=True, timeout=PROBE_SECONDS).stdout
    except OSError:
        return ""


def moment() -> dict:
    """When a session begins: the load, and the share of all CPU time that others take while nothing of ours runs."""
    before = _busy_ticks()
    time.sleep(BUSY_SECONDS)
    after = _busy_ticks()
    total = after[1] - before[1]
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "load": round(os.getloadavg()[0], 2),
        "background": round((after[0] - before[0]) / total, 3) if total else None,
    }


def _busy_ticks() -> tuple[int, int]:
    with open("/proc/stat") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def _field(path: str, name: str) -> str:
    with contextlib.suppress(OSError), open(path) as file:
        for line in file:
            if line.startswith(name):
                return line.partition(":")[2].strip()
    return "0"


def _in_python(program: str) -> str:
    """Asked of another process, so that this one stays light."""
    try:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout.strip()


def _measured_files() -> list[str]:
    found = [os.path.join(ROOT, "bench", name) for name in ("train_ddp.py", "bare_loop.py")]
    for folder, _folders, files in os.walk(os.path.join(ROOT, "src", "holdfast")):
        found += [os.path.join(folder, name) for name in files if name.endswith(".py")]
    return found
