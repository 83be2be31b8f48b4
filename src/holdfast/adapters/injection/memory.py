"""Have the kernel's out-of-memory killer end one process, by moving it into a memory cgroup with no room.

Memory that a process already holds stays charged where it was, so it dies at the next page it asks for. One that asks
for none, because it sleeps or reuses what it has, is made to (through ptrace, where that is possible). The cgroup is
removed afterwards, and a process that survived is put back where it came from.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

import msgspec

from holdfast.adapters.injection import tracing
from holdfast.adapters.injection.refusal import Gone, Refused
from holdfast.adapters.injection.signals import ended
from holdfast.adapters.injection.victims import Victim, held

LIMIT_BYTES = 64 * 1024
_PATIENCE_SECONDS = 1.0  # for the process to ask for memory by itself
_END_SECONDS = 10.0
_KEEP_SECONDS = 0.5  # after the death, for whoever reads the counters
_REMOVE_SECONDS = 5.0
_NEED = "a memory cgroup that may be written to: root, or a delegated cgroup"


class Place(msgspec.Struct, frozen=True):
    """Where a process's memory is counted."""

    version: int
    path: str  # of its cgroup
    nest: str  # a cgroup in which another can be made


class Outcome(msgspec.Struct, frozen=True):
    at_ns: int
    ended: bool
    cgroup: str
    nudged: bool  # it had to be made to ask for memory


def exhaust(victim: Victim) -> Outcome:
    with held([victim]) as (handle,):
        try:
            _check_killable(victim.pid)
            place = place_of(_read(f"/proc/{victim.pid}/cgroup"), _read("/proc/self/mountinfo"))
        except (FileNotFoundError, ProcessLookupError):
            raise Gone(victim.name) from None
        with _pen(place, victim.pid) as pen:
            _narrow(place, pen)
            at = time.monotonic_ns()
            _write(os.path.join(pen, "cgroup.procs"), str(victim.pid))
            nudged = not ended(handle, _PATIENCE_SECONDS)
            if nudged and tracing.supported():
                with contextlib.suppress(Gone):
                    tracing.make_allocate(victim.pid, 1024 * LIMIT_BYTES)
            dead = ended(handle, _END_SECONDS)
            if dead:
                time.sleep(_KEEP_SECONDS)
            return Outcome(at, dead, pen, nudged)


def place_of(cgroups: str, mounts: str) -> Place:
    """From /proc/PID/cgroup and /proc/self/mountinfo: the controller `memory` of version 1, or version 2."""
    roots = dict(_mounts(mounts))
    for line in cgroups.splitlines():
        _number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(",") and 1 in roots:
            folder = _under(roots[1], path)
            return Place(1, folder, folder)
    for line in cgroups.splitlines():
        _number, controllers, path = line.split(":", 2)
        if not controllers and 2 in roots:
            folder = _under(roots[2], path)
            return Place(2, folder, _delegating(folder, roots[2][1]))
    raise Refused("this machine has no memory cgroups", why=f"the fault `oom` needs {_NEED}")


def _mounts(text: str) -> Iterator[tuple[int, tuple[str, str]]]:
    """(version, (root inside the hierarchy, mount point)) of what counts memory."""
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if kind[0] == "cgroup2":
            yield 2, (fields[3], fields[4])
        elif kind[0] == "cgroup" and "memory" in kind[-1].split(","):
            yield 1, (fields[3], fields[4])


def _under(mount: tuple[str, str], path: str) -> str:
    root, point = mount
    inside = os.path.relpath(path, root) if root != "/" and path.startswith(root) else path.lstrip("/")
    return os.path.normpath(os.path.join(point, inside))


def _delegating(folder: str, root: str) -> str:
    """Version 2 makes children only where memory is handed down, which a cgroup with processes cannot do."""
    nest = folder
    while len(nest) >= len(root):
        with contextlib.suppress(OSError):
            if "memory" in _read(os.path.join(nest, "cgroup.subtree_control")).split():
                return nest
        nest = os.path.dirname(nest)
    raise Refused(f"no cgroup above {folder} hands memory down", why=f"the fault `oom` needs {_NEED}")


@contextlib.contextmanager
def _pen(place: Place, pid: int) -> Iterator[str]:
    path = os.path.join(place.nest, f"holdfast-drill-{pid}")
    try:
        os.mkdir(path)
    except OSError as error:
        raise _refusal(path, error) from None
    try:
        yield path
    finally:
        _release(path, place.path)
        _remove(path)


def _release(pen: str, home: str) -> None:
    """Put whatever is still alive in it back."""
    for pid in _read(os.path.join(pen, "cgroup.procs")).split():
        with contextlib.suppress(Gone, Refused):
            _write(os.path.join(home, "cgroup.procs"), pid)


def _narrow(place: Place, pen: str) -> None:
    limit, swap = ("memory.limit_in_bytes", None) if place.version == 1 else ("memory.max", "memory.swap.max")
    if swap is not None:
        with contextlib.suppress(Refused):
            _write(os.path.join(pen, swap), "0")
    _write(os.path.join(pen, limit), str(LIMIT_BYTES))


def _remove(path: str) -> None:
    """A cgroup goes when its last process has given everything back."""
    deadline = time.monotonic() + _REMOVE_SECONDS
    while time.monotonic() < deadline:
        try:
            os.rmdir(path)
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.02)
        else:
            return


def _check_killable(pid: int) -> None:
    if _read(f"/proc/{pid}/oom_score_adj").strip() == "-1000":
        raise Refused(f"pid {pid} is exempt from the out-of-memory killer", why="its oom_score_adj is -1000")


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
    except ProcessLookupError:
        raise Gone(text) from None
    except OSError as error:
        raise _refusal(path, error) from None


def _refusal(path: str, error: OSError) -> Refused:
    return Refused(f"{path}: {(error.strerror or str(error)).lower()}", why=f"the fault `oom` needs {_NEED}")
