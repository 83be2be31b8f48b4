"""The launchers that are compared, in which settings, and how a job under one of them is started and ended.

Everything a job leaves behind becomes a child of this process (it is a subreaper), so a job is over when this process
has no children left; they are ended one by one, by their id.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from harness.trace import Traces

BENCH = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SCRIPT = os.path.join(BENCH, "train_ddp.py")
POLL_SECONDS = 0.02  # times are taken from the trace; looking more often would only take CPU from the job
END_SECONDS = 5.0
KEPT_LOG_BYTES = 4000

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Launcher:
    """One launcher in one setting."""

    name: str
    title: str
    flags: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    fresh: bool = False  # a new interpreter for every worker of every incarnation

    def command(self, world: int) -> list[str]:
        if self.name == "bare":
            return [sys.executable, os.path.join(BENCH, "bare_loop.py"), f"--world={world}", *self.flags]
        if self.name.startswith("holdfast"):
            start = [os.path.join(os.path.dirname(sys.executable), "holdfast"), "run", "--max-restarts=100000"]
        else:
            start = [sys.executable, "-m", "torch.distributed.run", "--max-restarts=100"]
        return [*start, f"--nproc-per-node={world}", *self.flags]


_UNSHARED = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
_FORK = ("--run-path", "--start-method=fork")

HOLDFAST = Launcher("holdfast", "Holdfast")
BARE = Launcher("bare", "bare loop")
TORCHRUN = Launcher("torchrun-default", "torchrun, default", fresh=True)
TORCHRUN_FORK = Launcher(
    "torchrun-fork-unshared",
    "torchrun, --run-path, fork, unshared store",
    ("--standalone", *_FORK),
    _UNSHARED,
)
TORCHRUNS = (
    TORCHRUN,
    Launcher("torchrun-standalone", "torchrun, --standalone", ("--standalone",), fresh=True),
    Launcher("torchrun-unshared", "torchrun, c10d, unshared store", ("--standalone",), _UNSHARED, fresh=True),
    Launcher("torchrun-fork", "torchrun, --run-path, fork", ("--standalone", *_FORK)),
    TORCHRUN_FORK,
)


class Job:
    """`train_ddp.py` under a launcher, with a folder of its own for its trace, checkpoint, journal and output."""

    def __init__(self, launcher: Launcher, world: int, arguments: tuple[str, ...] = ()) -> None:
        self.folder = tempfile.mkdtemp(prefix="holdfast-bench-")
        self.home = os.path.join(self.folder, "home")
        self.traces = Traces(self.folder, world)
        self.world = world
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HOLDFAST_", "PET_", "TORCHELASTIC_"))}
        environment = {**kept, "HOLDFAST_HOME": self.home, "OMP_NUM_THREADS": "1", **launcher.environment}
        command = [*launcher.command(world), SCRIPT, f"--folder={self.folder}", *arguments]
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        with open(os.path.join(self.folder, "output"), "wb") as output:
            self.launched_ns = time.monotonic_ns()
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                cwd=self.folder,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def running(self) -> bool:
        self.traces.poll()
        return self.process.poll() is None

    def wait_for(self, met, seconds: float) -> bool:
        """Look at the trace until `met()` holds; False when the time is over or the launcher has gone."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            alive = self.running()
            if met():
                return True
            if not alive:
                return False
            time.sleep(POLL_SECONDS)
        return False

    def output_tail(self) -> str:
        with open(os.path.join(self.folder, "output"), "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - KEPT_LOG_BYTES))
            return file.read().decode(errors="replace")

    def end(self) -> None:
        """Ask the launcher to leave, then end whatever is left of it."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_SECONDS)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        _end_descendants()

    def forget(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def job(launcher: Launcher, world: int, arguments: tuple[str, ...] = ()) -> Iterator[Job]:
    """A job for the length of the block. What has to be read from its folder is read in it, after `end()`."""
    started = Job(launcher, world, arguments)
    try:
        yield started
    finally:
        started.end()
        started.forget()


def descendants(pid: int) -> list[int]:
    """All processes below this one, parents first."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry))
    found, todo = [], [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _end_descendants() -> None:
    deadline = time.monotonic() + 2 * END_SECONDS
    while (left := descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(POLL_SECONDS)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
