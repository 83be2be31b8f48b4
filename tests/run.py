"""Everything that must hold, in one command: style, types, layers, then every test.

Nothing is skipped silently: what could not run on this machine is listed at the end, with the reason.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
WORKERS = "3"  # end-to-end tests wait more than they compute

STEPS: tuple[tuple[str, list[str]], ...] = (
    ("style", [str(BIN / "ruff"), "check", "."]),
    ("format", [str(BIN / "ruff"), "format", "--check", "."]),
    ("types", [str(BIN / "mypy")]),
    ("layers", [str(BIN / "lint-imports"), "--config", "pyproject.toml"]),
    (
        "tests",
        [sys.executable, "-m", "pytest", "-q", "-n", WORKERS, "--dist", "worksteal", "-p", "no:cacheprovider", "-rs"],
    ),
)


def not_run() -> list[tuple[str, str]]:
    """What no test here can show, beside the tests that pytest has just listed as skipped."""
    missing = []
    if not Path("/proc/driver/nvidia/gpus").is_dir():
        missing.append(("anything on a GPU: spares that hold a context, the gpu-* rows of bench/recovery.py", "no GPU"))
    if not Path("/sys/fs/cgroup/cgroup.controllers").exists():
        missing.append(("a memory kill in a cgroup v2; its files are tested from recordings", "cgroups are v1 here"))
    missing.append(("a home on a real NFS mount; its file system's number is given instead", "no NFS server"))
    return missing


def main() -> int:
    failed = []
    for name, command in STEPS:
        print(f"== {name}", flush=True)
        started = time.monotonic()
        if subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False).returncode:
            failed.append(name)
        print(f"== {name}: {'failed' if name in failed else 'ok'} after {time.monotonic() - started:.0f} s", flush=True)
    for what, reason in not_run():
        print(f"not run on this machine: {what} ({reason})")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
