"""Facts that explain a death, gathered cheaply at the moment of it: did the kernel kill it because memory ran out?

Reading is separated from parsing, so that both cgroup versions can be tested on recorded files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_CGROUP_ROOT = "/sys/fs/cgroup"
_RECORDS_LIMIT = 20_000
_HEARD_LIMIT = 2**16
_OOM_LINE = re.compile(r"Killed process (\d+) \((.*?)\)")


def memory_files(cgroup_text: str, root: str = _CGROUP_ROOT) -> dict[str, str]:
    """Where this process's memory events are counted: {"v1" or "v2": path}, from the text of /proc/self/cgroup."""
    files = {}
    for line in cgroup_text.splitlines():
        _number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            files["v1"] = os.path.join(root, "memory", path.lstrip("/"), "memory.oom_control")
        elif not controllers:
            files["v2"] = os.path.join(root, path.lstrip("/"), "memory.events")
    return files


def oom_kills(text: str) -> int | None:
    """The counter `oom_kill` of memory.events (v2) or memory.oom_control (v1)."""
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdigit():
            return int(value)
    return None


def kernel_oom_line(kernel_log: str, pid: int) -> str | None:
    """The kernel's own words about killing this process for memory."""
    for line in kernel_log.splitlines():
        match = _OOM_LINE.search(line)
        if match and int(match.group(1)) == pid:
            return line.split(";", 1)[-1].strip()
    return None


class OomWatch:
    """Notices that the kernel's count of memory kills has moved, here or in the cgroup of a worker."""

    def __init__(self, files: Mapping[str, str] | None = None) -> None:
        self._files = memory_files(_read("/proc/self/cgroup") or "") if files is None else files
        self._last: dict[str, int] = {}
        self._log = _open_kernel_log()
        self._heard = ""
        self.since_last()

    def since_last(self, pid: int | None = None) -> tuple[str, ...]:
        """Evidence of a memory kill since the last call, in our own cgroup or in that of a process that is dying."""
        own = memory_files(_read(f"/proc/{pid}/cgroup") or "") if pid is not None else {}
        found = []
        for version, path in {*self._files.items(), *own.items()}:
            count = self._count(path)
            if count is None:
                continue
            if count > self._last.get(path, 0):
                more = count - self._last.get(path, 0)
                found.append(f"out of memory: the cgroup ({version}) counts {more} more oom_kill")
            self._last[path] = count
        self.listen()
        if pid is not None and (line := kernel_oom_line(self._heard, pid)):
            found.append(f"out of memory: {line}")
        return tuple(found)

    def listen(self) -> None:
        """Hear what the kernel has said. Now and then, so that little is left to hear at the moment of a kill."""
        if self._log is not None:
            self._heard = (self._heard + _records(self._log))[-_HEARD_LIMIT:]

    @staticmethod
    def _count(path: str) -> int | None:
        """The counter at this path; in a container, whose view of cgroups starts lower, at the root of its view."""
        for candidate in (path, os.path.join(_CGROUP_ROOT, "memory", os.path.basename(path))):
            text = _read(candidate)
            if text is not None:
                return oom_kills(text)
        return None


def kernel_log(limit_bytes: int = 2**18) -> str:
    """The newest part of the kernel's log, or nothing where it may not be read."""
    fd = _open_kernel_log(from_end=False)
    if fd is None:
        return ""
    try:
        return _records(fd)[-limit_bytes:]
    finally:
        os.close(fd)


def _open_kernel_log(*, from_end: bool = True) -> int | None:
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    if from_end:
        os.lseek(fd, 0, os.SEEK_END)
    return fd


def _records(fd: int) -> str:
    """Every record from here on. A bounded number: the log may grow as fast as it is read."""
    lines = []
    for _ in range(_RECORDS_LIMIT):
        try:
            lines.append(os.read(fd, 8192).decode(errors="replace"))
        except BlockingIOError:
            break
        except OSError:
            continue  # overwritten while we were reading: the next read is newer
    return "".join(lines)


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None
