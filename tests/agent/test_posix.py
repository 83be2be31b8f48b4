"""What the core and the simulator rely on: facts come once, in order, and are true."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator

import pytest

from holdfast.adapters import proc
from holdfast.adapters.posix import Handle, PosixProcesses, Streams, Watcher
from holdfast.model.exits import Exit
from holdfast.model.ids import ProcessId

WAIT_SECONDS = 20.0


class Diary(Watcher):
    """Writes down everything it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, object]] = []

    def warm(self, handle: Handle) -> None:
        self.told.append(("warm", handle.id, handle.pid))

    def stillborn(self, handle: Handle, reason: str) -> None:
        self.told.append(("stillborn", handle.id, reason))

    def message(self, handle: Handle, message: dict) -> None:
        self.told.append((message["op"], handle.id, message))

    def lost(self, handle: Handle, sign: str, exit: Exit, seen_at: float) -> None:
        self.told.append(("lost", handle.id, (sign, exit)))

    def gone(self, handle: Handle, exit: Exit) -> None:
        self.told.append(("gone", handle.id, exit))

    def stopped(self, handle: Handle, number: int) -> None:
        self.told.append(("stopped", handle.id, number))

    def continued(self, handle: Handle) -> None:
        self.told.append(("continued", handle.id, None))

    def nursery_message(self, message: dict) -> None:
        self.told.append((message["op"], "nursery", message))

    def nursery_lost(self, reason: str) -> None:
        self.told.append(("lost", "nursery", reason))

    def of(self, who: str) -> list[str]:
        return [what for what, whose, _ in self.told if whose == who]

    def what(self, what: str, who: str) -> object:
        return next((detail for w, whose, detail in self.told if (w, whose) == (what, who)), None)


class Machine:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.diary = Diary()
        self.processes = PosixProcesses(
            self.loop, self.diary, sys.executable, os.getcwd(), dict(os.environ), keeps_terminal=False, spared_pid=0
        )

    def until(self, condition: Callable[[], object]) -> None:
        async def wait() -> None:
            async with asyncio.timeout(WAIT_SECONDS):
                while not condition():
                    await asyncio.sleep(0.005)

        self.loop.run_until_complete(wait())

    def nursery(self) -> None:
        self.processes.start_nursery("holdfast: nursery under test", [], [])
        self.until(lambda: "ready" in self.diary.of("nursery"))

    def warm(self, id: str) -> int:
        self.processes.fork(ProcessId(id), _nowhere(), "holdfast: spare under test", None)
        self.until(lambda: "warm" in self.diary.of(id))
        return int(str(self.diary.what("warm", id)))

    def work(self, id: str, path: object) -> None:
        message = {"op": "work", "mode": "script", "script": str(path), "arguments": [], "env": {}, "title": "work"}
        rest = {"label_offset": None, "learn": False, "numa": None, "identity": {}}
        self.processes.tell(ProcessId(id), message | rest)


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine()
    yield machine
    assert machine.processes.end(10) == []
    machine.loop.remove_signal_handler(signal.SIGCHLD)
    machine.loop.close()


def _resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def _nowhere() -> Streams:
    return Streams(os.open(os.devnull, os.O_WRONLY), os.open(os.devnull, os.O_WRONLY))


def test_a_fork_is_our_child_and_a_kill_is_seen_once_by_the_mutex(machine, tmp_path):
    machine.nursery()
    pid = machine.warm("p1")
    seen = proc.stat(pid)
    assert seen is not None
    assert seen.parent == os.getpid()
    path = tmp_path / "holds.py"
    path.write_text("import time\nballast = b'x' * (400 * 2**20)\ntime.sleep(300)\n")
    machine.work("p1", path)
    machine.until(lambda: _resident_bytes(pid) > 400 * 2**20)
    os.kill(pid, signal.SIGKILL)
    machine.until(lambda: "gone" in machine.diary.of("p1"))
    assert machine.diary.of("p1") == ["warm", "lost", "gone"]
    assert machine.diary.what("lost", "p1") == ("robust mutex", Exit(signal=signal.SIGKILL))
    assert machine.diary.what("gone", "p1") == Exit(signal=signal.SIGKILL)


def test_last_words_come_before_the_death_that_follows(machine, tmp_path):
    path = tmp_path / "ends.py"
    path.write_text("import atexit, os\natexit.register(os.abort)\n")
    machine.nursery()
    for number in range(5):
        machine.warm(f"p{number}")
        machine.work(f"p{number}", path)
    machine.until(lambda: all("gone" in machine.diary.of(f"p{number}") for number in range(5)))
    for number in range(5):
        assert machine.diary.of(f"p{number}") == ["warm", "ended", "lost", "gone"]


def test_a_dead_nursery_is_told_once_and_leaves_its_children(machine):
    machine.nursery()
    pid = machine.warm("p1")
    os.kill(machine.processes.nursery_pid, signal.SIGKILL)
    machine.until(lambda: "lost" in machine.diary.of("nursery"))
    machine.processes.fork(ProcessId("p2"), _nowhere(), "", None)
    machine.until(lambda: machine.diary.of("p2"))
    assert machine.diary.of("p2") == ["stillborn"]
    assert machine.diary.of("nursery").count("lost") == 1
    assert proc.stat(pid) is not None
    assert machine.diary.of("p1") == ["warm"]


def test_orphans_are_swept_and_the_newborn_are_not(machine, tmp_path):
    path = tmp_path / "leaves.py"
    path.write_text("import os, time\nif not os.fork():\n    os.setsid()\n    time.sleep(300)\n")
    machine.nursery()
    machine.warm("p1")
    machine.work("p1", path)
    machine.until(lambda: "gone" in machine.diary.of("p1"))
    machine.processes.forget(ProcessId("p1"))
    machine.processes.fork(ProcessId("p2"), _nowhere(), "holdfast: newborn", None)
    machine.processes.sweep_orphans()
    machine.until(lambda: "warm" in machine.diary.of("p2"))
    newborn = machine.diary.what("warm", "p2")
    known = {newborn, machine.processes.nursery_pid}
    machine.until(lambda: set(proc.children_of(os.getpid())) <= known)
    assert machine.diary.of("p2") == ["warm"]


def test_a_program_is_watched_by_its_pidfd(machine):
    command = ["/bin/sh", "-c", "exit 7"]
    machine.processes.start_program(ProcessId("p1"), command, _nowhere(), dict(os.environ))
    machine.until(lambda: "gone" in machine.diary.of("p1"))
    assert machine.diary.of("p1") == ["lost", "gone"]
    assert machine.diary.what("gone", "p1") == Exit(code=7)


def test_a_stop_and_its_end_are_told(machine):
    machine.nursery()
    pid = machine.warm("p1")
    os.kill(pid, signal.SIGSTOP)
    machine.until(lambda: "stopped" in machine.diary.of("p1"))
    os.kill(pid, signal.SIGCONT)
    machine.until(lambda: "continued" in machine.diary.of("p1"))
    assert machine.diary.of("p1") == ["warm", "stopped", "continued"]
