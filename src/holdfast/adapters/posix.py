"""Processes on this machine: started, watched, ended. The adapter behind every action that concerns a process.

It decides nothing. It turns commands into processes and what the kernel and those processes say into events. A death
is known by the first sign that comes: the robust mutex on the board, the end of the control socket, the pidfd.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import threading
import time
from dataclasses import dataclass, field

from holdfast.adapters import proc
from holdfast.adapters.channel import Channel
from holdfast.model.exits import Exit
from holdfast.model.ids import ProcessId
from holdfast.worker import wire
from holdfast.worker.board import Board, Stage, Word
from holdfast.worker.titles import ROOM

_PR_SET_CHILD_SUBREAPER = 36
_SWEEP_AGAIN_SECONDS = 0.25
_BOOT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "worker", "boot.py")


@dataclass
class Streams:
    """The write ends that a process gets as its output."""

    stdout: int
    stderr: int

    def close(self) -> None:
        os.close(self.stdout)
        os.close(self.stderr)


@dataclass
class Handle:
    """One process as the agent holds it."""

    id: ProcessId
    board: Board | None = None
    channel: Channel | None = None
    pid: int | None = None
    pidfd: int | None = None
    lost: bool = False
    gone: bool = False
    unwanted: bool = False
    own_group: bool = True
    early: bool = True  # its death is seen before its memory is given back
    popen: subprocess.Popen[bytes] | None = field(default=None, repr=False)


class Watcher:
    """What the adapter tells its owner. Every method is called on the event loop."""

    def warm(self, handle: Handle) -> None: ...
    def stillborn(self, handle: Handle, reason: str) -> None: ...
    def message(self, handle: Handle, message: wire.Message) -> None: ...
    def lost(self, handle: Handle, sign: str, exit: Exit, seen_at: float) -> None: ...
    def gone(self, handle: Handle, exit: Exit) -> None: ...
    def stopped(self, handle: Handle, number: int) -> None: ...
    def continued(self, handle: Handle) -> None: ...
    def nursery_message(self, message: wire.Message) -> None: ...
    def nursery_lost(self, reason: str) -> None: ...


class PosixProcesses:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        watcher: Watcher,
        python: str,
        cwd: str,
        environment: dict[str, str],
        *,
        keeps_terminal: bool,
        spared_pid: int,
    ) -> None:
        self._loop = loop
        self._watcher = watcher
        self._python = python
        self._cwd = cwd
        self._environment = environment
        self._keeps_terminal = keeps_terminal
        self._spared_pid = spared_pid  # the warden's: it must outlive us
        self._handles: dict[ProcessId, Handle] = {}
        self._nursery: subprocess.Popen[bytes] | None = None
        self._nursery_channel: Channel | None = None
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        loop.add_signal_handler(signal.SIGCHLD, self._child_changed)

    # -- the nursery

    def start_nursery(self, title: str, modules: list[str], learned: list[str]) -> None:
        self.end_nursery()
        ours, theirs = socket.socketpair()
        try:
            self._nursery = subprocess.Popen(
                [self._python, "-u", _BOOT, "nursery", str(theirs.fileno()), ROOM],
                pass_fds=(theirs.fileno(),),
                stdout=2,  # what imports print is not the script's output
                env=self._environment,
                cwd=self._cwd,
            )
        except OSError as error:
            ours.close()
            reason = f"{self._python}: {error.strerror}"
            self._loop.call_soon(lambda: self._watcher.nursery_lost(reason))
            return
        finally:
            theirs.close()
        channel = Channel(
            self._loop, ours, self._watcher.nursery_message, lambda: self._nursery_ended("it closed its socket")
        )
        self._nursery_channel = channel
        channel.send({"agent_pid": os.getpid(), "title": title, "modules": modules, "learned": learned})

    def ask_nursery(self, message: wire.Message) -> None:
        if self._nursery_channel is not None:
            self._nursery_channel.send(message)

    def end_nursery(self) -> None:
        """Without a word: whoever asks for it knows why."""
        if self._nursery_channel is not None:
            self._nursery_channel.close()
            self._nursery_channel = None
        if self._nursery is not None:
            proc.send(self._nursery.pid, signal.SIGKILL)
            self._nursery.returncode = -signal.SIGKILL  # collected with every other child, so that nobody else tries
            self._nursery = None

    @property
    def nursery_pid(self) -> int | None:
        return self._nursery.pid if self._nursery is not None else None

    def _nursery_ended(self, reason: str) -> None:
        if self._nursery is not None:
            self.end_nursery()
            self._watcher.nursery_lost(reason)

    # -- births

    def fork(self, id: ProcessId, streams: Streams, title: str, device: int | None) -> None:
        handle, control, board_fd = self._prepare(id)
        if self._nursery_channel is None:
            os.close(control)
            os.close(board_fd)
            streams.close()
            self._loop.call_soon(lambda: self._stillborn(handle, "there is no nursery"))
            return
        self._nursery_channel.send(
            {"op": "fork", "id": id, "own_group": handle.own_group, "title": title, "device": device},
            (control, board_fd, streams.stdout, streams.stderr),
        )

    def start_cold(self, id: ProcessId, streams: Streams) -> None:
        handle, control, board_fd = self._prepare(id)
        own_group = "1" if handle.own_group else "0"
        arguments = [str(control), str(board_fd), str(os.getpid()), own_group, ROOM]
        command = [self._python, "-u", _BOOT, "cold", *arguments]
        self._spawn(handle, command, streams, self._environment, (control, board_fd))
        os.close(control)
        os.close(board_fd)

    def start_program(self, id: ProcessId, command: list[str], streams: Streams, environment: dict[str, str]) -> None:
        """A program that is none of ours, as a worker."""
        handle = self._handles.setdefault(id, Handle(id, own_group=not self._keeps_terminal, early=False))
        own_group = "1" if handle.own_group else "0"
        boot = [self._python, "-S", "-E", _BOOT, "exec", str(os.getpid()), own_group, *command]
        if self._spawn(handle, boot, streams, environment, ()):
            self._watch_pid(handle)

    def _prepare(self, id: ProcessId) -> tuple[Handle, int, int]:
        ours, theirs = socket.socketpair()
        board_fd = Board.create()
        handle = Handle(id, board=Board(board_fd), own_group=not self._keeps_terminal)
        self._handles[id] = handle
        handle.channel = Channel(
            self._loop,
            ours,
            lambda message: self._message(handle, message),
            lambda: self._channel_ended(handle),
        )
        return handle, theirs.detach(), board_fd

    def _spawn(
        self,
        handle: Handle,
        command: list[str],
        streams: Streams,
        environment: dict[str, str],
        fds: tuple[int, ...],
    ) -> bool:
        try:
            handle.popen = subprocess.Popen(
                command, stdout=streams.stdout, stderr=streams.stderr, pass_fds=fds, env=environment, cwd=self._cwd
            )
        except OSError as error:
            reason = f"{command[0]}: {error.strerror}"
            self._loop.call_soon(lambda: self._stillborn(handle, reason))
            return False
        finally:
            streams.close()
        handle.pid = handle.popen.pid
        return True

    # -- commands to living processes

    def tell(self, id: ProcessId, message: wire.Message) -> None:
        handle = self._handles.get(id)
        if handle is not None and handle.channel is not None:
            handle.channel.send(message)

    def send_signal(self, id: ProcessId, number: int) -> None:
        handle = self._handles.get(id)
        if handle is not None and handle.pid is not None and not handle.gone:
            proc.send(handle.pid, number)

    def kill(self, id: ProcessId) -> None:
        """SIGKILL, then out of everybody's way. A process that has not said who it is leaves when its socket closes."""
        handle = self._handles.get(id)
        if handle is None or handle.gone:
            return
        handle.unwanted = True
        if handle.pid is None:
            if handle.channel is not None:
                handle.channel.close()
            return
        if handle.own_group:
            proc.kill_group(handle.pid)
        else:
            proc.send(handle.pid, signal.SIGKILL)
        if handle.early:
            proc.deprioritise(handle.pid)

    def board(self, id: ProcessId) -> Board | None:
        handle = self._handles.get(id)
        return handle.board if handle is not None else None

    def hears(self, id: ProcessId) -> bool:
        """Would a SIGTERM reach code of the script's own? Not without a handler, and not inside a collective."""
        handle = self._handles.get(id)
        if handle is None or handle.pid is None or handle.lost:
            return False
        if handle.board is not None and handle.board[Word.STAGE] == Stage.IN_COLLECTIVE:
            return False
        return proc.handles(handle.pid, signal.SIGTERM)

    def forget(self, id: ProcessId) -> None:
        handle = self._handles.pop(id, None)
        if handle is not None and handle.channel is not None:
            handle.channel.close()

    # -- signs of life and death

    def _message(self, handle: Handle, message: wire.Message) -> None:
        if message["op"] != "warm":
            self._watcher.message(handle, message)
            return
        handle.pid = int(message["pid"])
        if handle.unwanted:
            self.kill(handle.id)
        self._watch_mutex(handle)
        self._watch_pid(handle)
        if not handle.unwanted:
            self._watcher.warm(handle)

    def _stillborn(self, handle: Handle, reason: str) -> None:
        handle.lost = handle.gone = True
        self._watcher.stillborn(handle, reason)

    def _channel_ended(self, handle: Handle) -> None:
        if handle.pidfd is not None:
            self._look(handle, "socket", time.monotonic())
        elif not handle.lost:
            self._stillborn(handle, "it ended before it was ready")

    def _watch_mutex(self, handle: Handle) -> None:
        board, pid = handle.board, handle.pid
        assert board is not None and pid is not None

        def outlive() -> None:
            board.mutex.outlive()
            seen_at = time.monotonic()
            # Interpreter shutdown: the loop is gone, and so is any interest in this.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._look, handle, "robust mutex", seen_at)

        threading.Thread(target=outlive, name=f"watch-{handle.id}", daemon=True).start()

    def _look(self, handle: Handle, sign: str, seen_at: float) -> None:
        """A sign came; believe it only if the process is really on its way out, and its status can be read."""
        if handle.lost or handle.pid is None:
            return
        seen = proc.stat(handle.pid)
        if seen is None or not seen.exiting:
            handle.early = False  # it became another program, or is gone already: the pidfd knows
            return
        finished = handle.board is not None and handle.board[Word.STAGE] == Stage.FINISHED
        if not finished:
            proc.deprioritise(handle.pid)
        if seen.status == 0 and not finished:
            return  # exit code 0, or a status we may not read: the pidfd will tell which
        self._lost(handle, sign, proc.exit_of(seen.status), seen_at)

    def _lost(self, handle: Handle, sign: str, exit: Exit, seen_at: float) -> None:
        handle.lost = True
        if handle.channel is not None:
            handle.channel.drain()
        self._watcher.lost(handle, sign, exit, seen_at)

    def _watch_pid(self, handle: Handle) -> None:
        assert handle.pid is not None
        try:
            handle.pidfd = os.pidfd_open(handle.pid)
        except OSError:
            self._ended(handle, Exit())
            return
        self._loop.add_reader(handle.pidfd, self._collect, handle)

    def _collect(self, handle: Handle) -> None:
        if handle.gone or handle.pid is None:
            return
        try:
            pid, status = os.waitpid(handle.pid, os.WNOHANG)
        except ChildProcessError:
            self._ended(handle, Exit())
            return
        if pid:
            self._ended(handle, proc.exit_of(status))

    def _ended(self, handle: Handle, exit: Exit) -> None:
        if handle.gone:
            return
        if handle.pidfd is not None:
            self._loop.remove_reader(handle.pidfd)
            os.close(handle.pidfd)
            handle.pidfd = None
        if handle.popen is not None:
            handle.popen.returncode = 0  # collected here, so that nobody else tries
        handle.gone = True
        if not handle.lost:
            self._lost(handle, "pidfd", exit, time.monotonic())
        self._watcher.gone(handle, exit)

    def _child_changed(self) -> None:
        """Collect every status there is: our processes', and those of orphans the kernel has handed to us."""
        by_pid = {handle.pid: handle for handle in self._handles.values() if handle.pid is not None and not handle.gone}
        flags = os.WEXITED | os.WSTOPPED | os.WCONTINUED | os.WNOHANG
        while True:
            try:
                info = os.waitid(os.P_ALL, 0, flags)
            except ChildProcessError:
                return
            if info is None:
                return
            handle = by_pid.get(info.si_pid)
            nursery = self._nursery is not None and info.si_pid == self._nursery.pid
            if info.si_code in (os.CLD_STOPPED, os.CLD_TRAPPED):
                if nursery:
                    self._nursery_ended("it was stopped from outside")
                elif handle is not None and not handle.lost:
                    self._watcher.stopped(handle, info.si_status)
            elif info.si_code == os.CLD_CONTINUED:
                if handle is not None and not handle.lost:
                    self._watcher.continued(handle)
            elif handle is not None:
                killed = info.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
                self._ended(handle, Exit(signal=info.si_status) if killed else Exit(code=info.si_status))
            elif nursery and self._nursery is not None:
                self._nursery.returncode = 0
                self._nursery_ended(f"it ended ({info.si_status})")

    # -- the end

    def sweep_orphans(self) -> None:
        """Kill what dead workers have left behind: as a subreaper, the agent has become its parent.

        Not while a process is being born: forked apart from the nursery, it is ours before it has said who it is.
        """
        if any(handle.pid is None for handle in self._handles.values()):
            self._loop.call_later(_SWEEP_AGAIN_SECONDS, self.sweep_orphans)
            return
        ours = {handle.pid for handle in self._handles.values()} | {self.nursery_pid, self._spared_pid}
        orphans = [pid for pid in proc.children_of(os.getpid()) if pid not in ours]
        for pid in orphans:
            proc.kill_group(pid)

    def end(self, seconds: float) -> list[int]:
        """Kill everything and wait until it is gone. What the kernel cannot end in time is returned."""
        self.end_nursery()
        for handle in list(self._handles.values()):
            handle.early = False  # from here on somebody waits for the memory too
            if not handle.gone:
                self.kill(handle.id)
        deadline = time.monotonic() + seconds
        while True:
            self._child_changed()
            left = [pid for pid in proc.children_of(os.getpid()) if pid != self._spared_pid]
            if not left or time.monotonic() > deadline:
                return left
            for pid in left:
                proc.kill_group(pid)
            time.sleep(0.002)
