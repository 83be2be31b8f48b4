"""The warden: a small process that outlives the agent by a moment, to leave nothing behind when the agent is killed.

The kernel kills workers with the agent. What they started themselves, it does not: data-loader processes, servers,
anything in a session of its own. All of it carries the job's id in its environment, and the warden ends all that does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.adapters import proc

VARIABLE = "HOLDFAST_JOB_ID"
_SWEEP_SECONDS = 5.0
_DONE = b"."


@dataclass
class Warden:
    pid: int
    lifeline: int

    def dismiss(self) -> None:
        """The agent has cleaned up itself."""
        with contextlib.suppress(OSError):
            os.write(self.lifeline, _DONE)
            os.close(self.lifeline)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def post(job_id: str, title: Callable[[str], None]) -> Warden:
    """Fork it. To be called while this process has one thread."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(read)
        return Warden(pid, write)
    try:
        os.close(write)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        title(f"holdfast: warden of {job_id}")
        _let_go_of_output()
        if not os.read(read, 1):
            _sweep(job_id)
    finally:
        os._exit(0)


def _let_go_of_output() -> None:
    """Whoever waits for the end of our output must not have to wait for the warden."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)


def _sweep(job_id: str) -> None:
    deadline = time.monotonic() + _SWEEP_SECONDS
    while time.monotonic() < deadline:
        left = [pid for pid in proc.with_variable(VARIABLE, job_id) if pid != os.getpid()]
        if not left:
            return
        for pid in left:
            proc.send(pid, signal.SIGKILL)
        time.sleep(0.01)
