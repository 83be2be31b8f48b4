"""What Holdfast costs while nothing fails: start, steps, CPU, memory, imports. Rows of `bench/recovery.py`.

    python bench/overhead.py            # only these rows, into the same results file

Each function measures one session and returns plain data; `bench/recovery.py` says how often and interleaves them.
"""

from __future__ import annotations

import contextlib
import glob
import os
import subprocess
import sys
import time

from harness.launchers import Job, Launcher, descendants, job

START_CAP_SECONDS = 180.0
SETTLE_SECONDS = 3.0  # after the first steps, by when spares have been made
IMPORT_CHECK = """
import sys, holdfast
heavy = [name for name in ("torch", "numpy", "holdfast.agent", "holdfast.server") if name in sys.modules]
sys.exit(f"import holdfast imported {heavy}" if heavy else 0)
"""


def start(launcher: Launcher, world: int) -> dict:
    """From just before the launcher is started until every rank has completed its first step."""
    with job(launcher, world) as running:
        if not running.wait_for(lambda: running.traces.whole_at(0) is not None, START_CAP_SECONDS):
            return {"seconds": None, "output": running.output_tail()}
        return {"seconds": ((running.traces.whole_at(0) or 0) - running.launched_ns) / 1e9}


def steady(launcher: Launcher, world: int, first: int, last: int) -> dict:
    """A whole job of `last` steps without a fault.

    Steps: wall time of rank 0 between the ends of steps `first` and `last`. Workers' CPU: user and system time of each
    rank over the same steps, from its own process clock. Launcher's CPU: that of every other process of the job, from
    /proc, between the moments at which those steps were seen.
    """
    arguments = (f"--steps={last}", "--cpu-at", str(first), str(last))
    with job(launcher, world, arguments) as running:
        traces = running.traces
        cap = START_CAP_SECONDS + last
        late = last - max(1, (last - first) // 20)  # before anybody begins to leave
        if not running.wait_for(lambda: traces.steps(0) >= first, START_CAP_SECONDS):
            return {"seconds": None, "output": running.output_tail()}
        begun = traces.steps(0), _others_cpu_seconds(running)
        running.wait_for(lambda: traces.steps(0) >= late, cap)
        ended = traces.steps(0), _others_cpu_seconds(running)
        deadline = time.monotonic() + cap
        while running.running() and time.monotonic() < deadline:
            time.sleep(0.002)
        left_ns = time.monotonic_ns()
        code = running.process.poll()
        crew = traces.crew(0)
        if code != 0 or crew is None or any(last not in life.cpu for life in crew):
            return {"seconds": None, "code": code, "output": running.output_tail()}
        steps = last - first
        worker_us = [(life.cpu[last] - life.cpu[first]) / 1e3 / steps for life in crew]
        others_us = (ended[1] - begun[1]) * 1e6 / ((ended[0] - begun[0]) * world)
        return {
            "seconds": ((crew[0].when(last) or 0) - (crew[0].when(first) or 0)) / 1e9,
            "whole_seconds": (left_ns - running.launched_ns) / 1e9,
            "worker_cpu_us": sum(worker_us) / world,
            "launcher_cpu_us": others_us,
        }


def memory(launcher: Launcher, world: int) -> dict:
    """RSS and PSS of every process of a job while it trains, spares included. PSS shares out what is shared."""
    with job(launcher, world) as running:
        if not running.wait_for(lambda: running.traces.whole_at(0) is not None, START_CAP_SECONDS):
            return {"processes": None, "output": running.output_tail()}
        time.sleep(SETTLE_SECONDS)
        running.running()
        workers = running.traces.pids()
        pids = [running.process.pid, *descendants(running.process.pid)]
        found = [_memory_of(pid, running.process.pid, workers) for pid in pids]
        return {"processes": tell_spares([process for process in found if process])}


def imports(count: int) -> dict:
    """`holdfast --help` from start to exit, and a bare interpreter beside it; and what `import holdfast` imports."""
    holdfast = os.path.join(os.path.dirname(sys.executable), "holdfast")
    check = subprocess.run([sys.executable, "-c", IMPORT_CHECK], capture_output=True, text=True, timeout=60)
    asked = [(_timed([holdfast, "--help"]), _timed([sys.executable, "-c", "pass"])) for _ in range(count)]
    return {
        "help_ms": [help_ms for help_ms, _ in asked],
        "python_ms": [python_ms for _, python_ms in asked],
        "light": check.returncode == 0,
        "why": check.stderr.strip(),
    }


def _timed(command: list[str]) -> float | None:
    begun = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)
    return (time.perf_counter() - begun) * 1e3 if done.returncode == 0 else None


def _others_cpu_seconds(running: Job) -> float:
    """CPU time of the launcher and whatever it has started that is not a worker.

    From the scheduler, in nanoseconds: a launcher that does little would round to nothing in clock ticks.
    """
    workers = running.traces.pids()
    total = 0
    for pid in (running.process.pid, *descendants(running.process.pid)):
        if pid not in workers:
            for path in glob.glob(f"/proc/{pid}/task/*/schedstat"):
                with contextlib.suppress(OSError), open(path) as file:
                    total += int(file.read().split()[0])
    return total / 1e9


def _memory_of(pid: int, launcher: int, workers: set[int]) -> dict | None:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            title = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
        with open(f"/proc/{pid}/smaps_rollup") as file:
            sizes = dict(line.split(":") for line in file if ":" in line.split()[0])
    except OSError:
        return None
    role = "launcher" if pid == launcher else "worker" if pid in workers else role_of(title)
    return {
        "pid": pid,
        "role": role,
        "title": title[:120],
        **{name: round(int(sizes[name.capitalize()].split()[0]) / 1024, 1) for name in ("rss", "pss")},
    }


def role_of(title: str) -> str:
    """Of a process that is neither launcher nor worker, by what it calls itself: `holdfast: ROLE of JOB`."""
    known = {"nursery": "nursery", "store": "keeper", "keeper": "keeper", "spare": "spare", "warden": "warden"}
    words = title.partition("holdfast: ")[2].split()
    return known.get(words[0], "other") if words else "other"


def tell_spares(processes: list[dict]) -> list[dict]:
    """A spare keeps the nursery's name until it is given a rank; the nursery is the eldest of those."""
    nurseries = sorted((process for process in processes if process["role"] == "nursery"), key=lambda p: p["pid"])
    spares = {process["pid"] for process in nurseries[1:]}
    return [{**process, "role": "spare"} if process["pid"] in spares else process for process in processes]


if __name__ == "__main__":
    from recovery import main

    sys.exit(main(["--rows=start*,steady*,memory*,imports", *sys.argv[1:]]))
