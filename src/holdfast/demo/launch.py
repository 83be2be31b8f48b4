"""A launcher with a training run under it: started, watched, stopped, and made sure to be gone.

What was started carries a mark in its environment, so that whatever is left of it can be found however it came to be.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import signal
import subprocess
import sys
import time

from holdfast.adapters import proc
from holdfast.adapters.home import Home, JobFolder
from holdfast.adapters.sqlite_journal import Head, UnreadableError, read_head
from holdfast.demo.traces import Trace

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "train.py")
MARK = "HOLDFAST_DEMO_MARK"
_JOB_ID = "HOLDFAST_JOB_ID"
_FOREIGN = ("PET_", "TORCHELASTIC_", "HOLDFAST_JOB", "HOLDFAST_DEMO")
_FOREIGN_NAMES = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS"}
_PR_SET_PDEATHSIG = 1
_STOP_SECONDS = 15.0
_GONE_SECONDS = 5.0
_LOOK_SECONDS = 0.02
_KEPT_BYTES = 4000
_libc = ctypes.CDLL(None)


class Launched:
    """`train.py` under a launcher, with a folder for what it writes."""

    def __init__(
        self,
        command: list[str],
        folder: str,
        ranks: int,
        script_arguments: list[str],
        environment: dict[str, str] | None = None,
        trace_folder: str | None = None,
    ) -> None:
        os.makedirs(trace_folder or folder, exist_ok=True)
        self.folder = folder
        self.trace = Trace(trace_folder or folder, ranks)
        self.mark = secrets.token_hex(8)
        self.output = os.path.join(folder, "output")
        self.ended_ns: int | None = None
        where = ["--folder", folder, *(["--trace", trace_folder] if trace_folder else [])]
        with open(self.output, "ab") as output:
            self.launched_ns, self.launched_wall = time.monotonic_ns(), time.time()
            self.process = subprocess.Popen(
                [*command, SCRIPT, *where, *script_arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_environment() | {MARK: self.mark} | (environment or {}),
                cwd=folder,
                start_new_session=True,  # Ctrl-C is ours to pass on
                preexec_fn=_die_with_parent,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def exit_code(self) -> int | None:
        return self.process.poll()

    @property
    def seconds(self) -> float:
        """Since the launch, or for as long as it lasted."""
        return ((self.ended_ns or time.monotonic_ns()) - self.launched_ns) / 1e9

    def poll(self) -> bool:
        """Read what is new; False once the launcher has left and everything it wrote is read."""
        over = self.process.poll() is not None
        news = self.trace.poll()
        if over and self.ended_ns is None:
            self.ended_ns = time.monotonic_ns()
        return news or not over

    def marks(self) -> dict[str, str]:
        """Variables of which every process of this run carries at least one."""
        return {MARK: self.mark}

    def alive(self) -> list[int]:
        return sorted({pid for name, value in self.marks().items() for pid in proc.with_variable(name, value)})

    def left_over(self, seconds: float = _GONE_SECONDS) -> list[int]:
        """Processes of this run that are still there, after giving them a moment to go."""
        deadline = time.monotonic() + seconds
        while (left := self.alive()) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        return left

    def stop(self, seconds: float = _STOP_SECONDS) -> None:
        """Ask the launcher to leave; end whatever is there after that."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
        self.end()

    def end(self) -> None:
        """At once, and all of it."""
        if self.process.poll() is None:
            self.process.kill()
        for pid in self.alive():
            proc.send(pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_GONE_SECONDS)
        self.left_over()
        self.trace.poll()
        self.trace.close()

    def last_words(self) -> str:
        with open(self.output, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _KEPT_BYTES))
            return file.read().decode(errors="replace").rstrip()


class HoldfastRun(Launched):
    """Under `holdfast run`, whose journal is read like anybody else's."""

    def __init__(self, name: str, folder: str, ranks: int, script_arguments: list[str], *, allow_drills: bool) -> None:
        self._home = Home.find(os.environ)
        self._job: JobFolder | None = None
        flags = ["--nproc-per-node", str(ranks), "--name", name, *(["--allow-drills"] if allow_drills else [])]
        command = [sys.executable, "-m", "holdfast", "run", *flags]
        super().__init__(command, folder, ranks, script_arguments)

    @property
    def job(self) -> JobFolder | None:
        """The folder whose journal names the process we started as its agent, and began after the launch."""
        if self._job is None:
            for folder in reversed(self._home.folders()):
                with contextlib.suppress(UnreadableError):
                    meta = read_head(folder.journal).meta
                    if meta.pid == self.pid and meta.created >= self.launched_wall:
                        self._job = folder
                        break
        return self._job

    def marks(self) -> dict[str, str]:
        return super().marks() | ({_JOB_ID: self._job.id} if self._job is not None else {})

    def head(self) -> Head | None:
        job = self.job
        with contextlib.suppress(UnreadableError):
            return read_head(job.journal) if job is not None else None
        return None


def _environment() -> dict[str, str]:
    """Ours, without what another launcher may have put there. One thread per rank is a condition of the comparison."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN) and k not in _FOREIGN_NAMES}
    return kept | {"OMP_NUM_THREADS": "1"}


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
