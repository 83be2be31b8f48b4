"""Jobs of torch-free scripts, and drills against them as a user makes them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.model.exits import Casualty
from tests.e2e.conftest import Job, run, wait_until  # noqa: F401

BLOCKED = Path(__file__).parent / "scripts" / "blocked.py"


class Patient:
    """A job that may be hurt."""

    def __init__(self, job: Job, ranks: int) -> None:
        self.job = job
        self.ranks = ranks

    def drill(self, *words: object) -> subprocess.CompletedProcess[str]:
        """`holdfast drill WORDS` against this job; the fault comes first."""
        fault, *rest = map(str, words)
        command = [sys.executable, "-m", "holdfast", "drill", fault, "last", *rest]
        return subprocess.run(
            command, env=self.job.environment, capture_output=True, text=True, timeout=60, check=False
        )

    def drilled(self, *words: object) -> dict[str, Any]:
        done = self.drill(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def whole(self, incarnation: int) -> list[int]:
        """The pids of an incarnation, once all of it runs."""
        return [worker.pid or 0 for worker in self.job.workers(self.ranks, incarnation)]

    def casualty(self, pid: int) -> Casualty:
        """What the job's record says of a process that it lost."""

        def found() -> Casualty | None:
            incidents = self.job.state.incidents.values()
            return next((c for i in incidents for c in i.casualties if c.pid == pid and c.exit is not None), None)

        return wait_until(found, f"a record of the end of {pid}")


@pytest.fixture
def patient(run: Callable[..., Job]) -> Callable[..., Patient]:  # noqa: F811
    def start(how: str = "sleeps", *, ranks: int = 2, allow: bool = True, flags: tuple[object, ...] = ()) -> Patient:
        allowed = ("--allow-drills",) if allow else ()
        job = run("--nproc-per-node", ranks, *allowed, *flags, BLOCKED, how)
        found = Patient(job, ranks)
        found.whole(1)
        wait_until(lambda: job.stdout().count("begun") >= ranks, "the script's first line")
        return found

    return start
