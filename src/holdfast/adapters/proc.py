"""What Linux says about a process in /proc, parsed. A process that is gone is None, never an exception."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.model.exits import Exit

_PF_EXITING = 0x4


@dataclass(frozen=True)
class Stat:
    """The fields of /proc/PID/stat that matter here."""

    parent: int
    exiting: bool
    state: str
    started: int  # clock ticks since boot: with the pid, it names one process for ever
    status: int  # wait status; 0 also when it may not be read


def parse_stat(text: str) -> Stat:
    fields = text[text.rindex(")") + 2 :].split()
    return Stat(
        parent=int(fields[1]),
        exiting=bool(int(fields[6]) & _PF_EXITING),
        state=fields[0],
        started=int(fields[19]),
        status=int(fields[49]),
    )


def stat(pid: int) -> Stat | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return parse_stat(file.read())
    except (OSError, ValueError, IndexError):
        return None


def exit_of(status: int) -> Exit:
    """A wait status in our words."""
    if os.WIFSIGNALED(status):
        return Exit(signal=os.WTERMSIG(status))
    return Exit(code=os.WEXITSTATUS(status))


def handles(pid: int, number: int) -> bool:
    """Has the process installed its own handler for this signal?"""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("SigCgt:"):
                    return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    except (OSError, ValueError, IndexError):
        return False
    return False


def pids() -> Iterator[int]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            yield int(name)


def children_of(parent: int) -> list[int]:
    found = []
    for pid in pids():
        seen = stat(pid)
        if seen is not None and seen.parent == parent:
            found.append(pid)
    return found


def with_variable(name: str, value: str) -> list[int]:
    """Processes that were started with this environment variable, or forked from one that was."""
    wanted = f"{name}={value}".encode()
    found = []
    for pid in pids():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    found.append(pid)
        except OSError:
            continue
    return found


def deprioritise(pid: int) -> None:
    """Let a dying process give its memory back only when nobody else wants the processor."""
    try:
        for name in os.listdir(f"/proc/{pid}/task"):
            os.sched_setscheduler(int(name), os.SCHED_IDLE, os.sched_param(0))
    except OSError:
        return


def send(pid: int, number: int) -> None:
    """Signal one process that may be gone."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def kill_group(pid: int) -> None:
    """SIGKILL to a process and to what it started in its own group."""
    send(pid, signal.SIGKILL)
    try:
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
