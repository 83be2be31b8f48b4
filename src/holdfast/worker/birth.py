"""From a process to a warm one: its own group, its lifeline to the agent, its board, its output.

Decides nothing about what the process will do; that arrives later on its control socket.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import NoReturn

from holdfast.worker.board import Board

_PR_SET_PDEATHSIG = 1
_ADOPTION_SECONDS = 10.0
_RESTORED_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD)

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class Birth:
    """A process that is ready to be told what it is."""

    control: socket.socket
    board: Board
    forked: bool
    title: str = ""
    device: int | None = None  # hold a CUDA context there while waiting


def of_forked_process(
    control_fd: int, board_fd: int, output_fds: tuple[int, int], agent_pid: int, *, own_group: bool
) -> Birth:
    """In the child of the nursery: stop being the nursery."""
    _join_group(agent_pid, own=bool(own_group))
    for number in _RESTORED_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    for stream, fd in zip((1, 2), output_fds, strict=True):
        os.dup2(fd, stream)
        os.close(fd)
    # The process between the nursery and this one is leaving; its death makes us the agent's own child, which is what
    # lets the agent collect our status and the kernel kill us with the agent.
    deadline = time.monotonic() + _ADOPTION_SECONDS
    while os.getppid() != agent_pid and time.monotonic() < deadline:
        time.sleep(0.0005)
    return _attach(control_fd, board_fd, agent_pid, forked=True)


def of_fresh_process(control_fd: int, board_fd: int, agent_pid: int, own_group: int) -> Birth:
    _join_group(agent_pid, own=bool(own_group))
    return _attach(control_fd, board_fd, agent_pid, forked=False)


def become(agent_pid: int, own_group: int, command: list[str]) -> NoReturn:
    """Replace this process by the user's own program, tied to the agent's life."""
    _join_group(agent_pid, own=bool(own_group))
    die_with(agent_pid)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"holdfast: cannot execute {command[0]!r}: {error.strerror}", file=sys.stderr)
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def _join_group(agent_pid: int, *, own: bool) -> None:
    """Lead a group of one's own, to be ended as one; or keep the terminal, with the group that owns it, the agent's.

    Who leads a group of its own cannot read the terminal: it would be stopped. It reads the end of input instead.
    """
    os.setpgid(0, 0 if own else os.getpgid(agent_pid))
    if own and os.isatty(0):
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)


def die_with(agent_pid: int) -> None:
    """Have the kernel kill this process when the agent dies; leave at once if that has happened already."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != agent_pid:
        os._exit(1)


def _attach(control_fd: int, board_fd: int, agent_pid: int, *, forked: bool) -> Birth:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # until there is a script to interrupt
    die_with(agent_pid)
    board = Board(board_fd)
    os.close(board_fd)
    board.mutex.hold()
    control = socket.socket(fileno=control_fd)
    control.set_inheritable(False)
    return Birth(control, board, forked)
