"""Real jobs: `holdfast run` as a user starts it, with its records in a folder of the test's own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.adapters import proc
from holdfast.adapters.home import Home
from holdfast.adapters.sqlite_journal import Head, read_head
from holdfast.model.state import Process, Purpose, Stage

SCRIPTS = Path(__file__).parent / "scripts"
WAIT_SECONDS = 60.0


def wait_until(condition: Callable[[], Any], what: str, seconds: float = WAIT_SECONDS) -> Any:
    """Poll until the condition gives something; fail, naming it, when it does not in time."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            pytest.fail(f"waited {seconds:g} s in vain for {what}")
        time.sleep(0.01)


class Job:
    """One `holdfast run`."""

    def __init__(self, folder: Path, command: list[str], environment: dict[str, str], **options: Any) -> None:
        self.folder = folder
        self.environment = environment
        self.home = Home.find(environment)
        self.out = folder / "stdout"
        self.err = folder / "stderr"
        self._known = {f.id for f in self.home.folders()}
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            options = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err} | options
            self.process = subprocess.Popen(command, env=environment, cwd=folder, **options)

    # -- how it went

    def wait(self, seconds: float = WAIT_SECONDS) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.end()
            pytest.fail(f"the job did not end in {seconds:g} s\n{self.stderr()}")

    def stdout(self) -> str:
        return self.out.read_text(errors="replace")

    def stderr(self) -> str:
        return self.err.read_text(errors="replace")

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    # -- what is recorded

    def head(self) -> Head | None:
        for folder in self.home.folders():
            if folder.id not in self._known and folder.journal.exists():
                try:
                    return read_head(folder.journal)
                except Exception:
                    return None
        return None

    @property
    def state(self) -> Any:
        head = self.head()
        assert head is not None, self.stderr()
        return head.state

    def processes(self, purpose: Purpose = Purpose.WORKER, stage: Stage = Stage.RUNNING) -> list[Process]:
        head = self.head()
        if head is None:
            return []
        found = [p for p in head.state.processes.values() if p.purpose is purpose and p.stage is stage]
        return sorted(found, key=lambda p: p.rank or 0)

    def workers(self, count: int, incarnation: int = 1) -> list[Process]:
        """Wait until this many workers of an incarnation run, in the order of their ranks."""

        def running() -> list[Process] | None:
            found = [p for p in self.processes() if p.incarnation == incarnation]
            return found if len(found) == count else None

        return wait_until(running, f"{count} workers of incarnation {incarnation}\n{self.stderr()}")

    def spares(self, count: int) -> list[Process]:
        return wait_until(
            lambda: len(found := self.processes(Purpose.SPARE, Stage.WARM)) == count and found, f"{count} spares"
        )

    def says(self, text: str, seconds: float = WAIT_SECONDS) -> None:
        wait_until(lambda: text in self.stderr(), f"{text!r} on stderr", seconds)

    def prints(self, text: str, seconds: float = WAIT_SECONDS) -> None:
        wait_until(lambda: text in self.stdout(), f"{text!r} on stdout", seconds)

    def left_behind(self) -> list[int]:
        """Processes that carry the mark of any job of this test."""
        return [
            pid
            for folder in self.home.folders()
            if folder.id not in self._known
            for pid in proc.with_variable("HOLDFAST_JOB_ID", folder.id)
        ]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Start `holdfast run ARGUMENTS`; whatever is left at the end of the test is ended, and must not be there."""
    jobs: list[Job] = []

    def start(
        *arguments: object, env: dict[str, str] | None = None, prefix: tuple[str, ...] = (), **options: Any
    ) -> Job:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PET_", "HOLDFAST_"))}
        environment |= {"HOLDFAST_HOME": str(tmp_path / "home"), "SCRATCH": str(tmp_path)} | (env or {})
        folder = tmp_path / f"job{len(jobs)}"
        folder.mkdir()
        command = [*prefix, sys.executable, "-m", "holdfast", "run", *map(str, arguments)]
        job = Job(folder, command, environment, **options)
        jobs.append(job)
        return job

    yield start
    for job in jobs:
        job.end()
        wait_until(lambda job=job: not job.left_behind(), "the last process of the job to be gone", 15)


@pytest.fixture
def scripts() -> Path:
    return SCRIPTS


def kill(process: Process, number: int = signal.SIGKILL) -> None:
    assert process.pid
    os.kill(process.pid, number)


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())
