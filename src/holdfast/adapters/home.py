"""The state folder: one folder per job, made so that a job never depends on it.

    HOME/jobs/JOB/journal.db     decisions (adapters.sqlite_journal)
                  logs/          what workers printed (adapters.joblogs)
                  incidents/N.json
                  lock           held by the agent for as long as it lives

A held lock is the one proof that a job is running: it needs no pid, no clock and no clean end. A home that cannot be
written to is replaced by a temporary folder, and when there is none by a path under which nothing can exist, so that
every write fails in its own adapter, which counts it. Which of these it was, `JobFolder.health` says.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

import msgspec

from holdfast.adapters import plain
from holdfast.adapters.filesystem import magic_of, network_name
from holdfast.model.ids import JobId
from holdfast.ports.health import WELL, Health

KEEP_JOBS = 200
KEEP_BYTES = 5 * 2**30
_NOWHERE = Path("/dev/null/holdfast")
_DRAFT_SECONDS = 3600.0
_ROOM_BYTES = 64 * 1024  # a home with less than this cannot even begin a journal


def new_job_id(now: float, entropy: bytes) -> JobId:
    """Sorts by time; two bytes of entropy keep jobs of the same second apart."""
    return JobId(f"job-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{entropy[:2].hex()}")


class Pruned(msgspec.Struct, frozen=True):
    jobs: tuple[str, ...] = ()
    freed_bytes: int = 0


class JobFolder:
    """One job's folder. Readers and the agent see the same object; only the agent holds the lock."""

    def __init__(self, path: Path, health: Health = WELL, lock: int | None = None) -> None:
        self.path = path
        self.health = health
        self._lock = lock

    @property
    def id(self) -> JobId:
        return JobId(self.path.name)

    @property
    def journal(self) -> Path:
        return self.path / "journal.db"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    # -- the lock

    def held(self) -> bool | None:
        """Does an agent live? None: nobody on this machine can tell."""
        if self._lock is not None:
            return True
        lock = _try_lock(self.path / "lock", fcntl.LOCK_SH)
        if isinstance(lock, int):
            os.close(lock)
            return False
        return True if lock is _Refusal.TAKEN else None

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # -- incidents

    def write_incident(self, number: int, data: object) -> Health:
        """Keep what was gathered about an incident: whole or not at all. Waits for the disk."""
        folder = self.path / "incidents"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            _write_atomically(folder / f"{number}.json", msgspec.json.format(plain.encode(data)))
        except OSError as error:
            return Health((f"the details of incident {number} are not kept: {_why(error)}",), lost=1)
        return WELL

    def read_incident(self, number: int) -> bytes | None:
        """JSON as it was written, or None."""
        try:
            return (self.path / "incidents" / f"{number}.json").read_bytes()
        except OSError:
            return None

    def size_bytes(self) -> int:
        return sum(_size(Path(folder) / name) for folder, _, names in os.walk(self.path) for name in names)


class Home:
    """Where jobs are kept. Finding it touches nothing; making a job's folder never fails."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @staticmethod
    def find(environ: Mapping[str, str]) -> Home:
        """HOLDFAST_HOME, else the XDG state folder. The XDG convention says to ignore a relative path."""
        if chosen := environ.get("HOLDFAST_HOME"):
            return Home(Path(os.path.abspath(os.path.expanduser(chosen))))
        state = environ.get("XDG_STATE_HOME", "")
        if os.path.isabs(state):
            return Home(Path(state) / "holdfast")
        user = environ.get("HOME") or os.path.expanduser("~")
        return Home(Path(os.path.abspath(user)) / ".local" / "state" / "holdfast")

    @property
    def jobs(self) -> Path:
        return self.root / "jobs"

    # -- making

    def job(self, job_id: JobId) -> JobFolder:
        """A new folder with its lock held, here or wherever else something can be written."""
        try:
            return self._make(job_id, WELL)
        except OSError as error:
            trouble = f"{self.root}: {_why(error)}"
        try:
            root = Path(tempfile.mkdtemp(prefix="holdfast-"))
            note = f"{trouble}; the records of this job are in {root} (read them with HOLDFAST_HOME={root})"
            return Home(root)._make(job_id, Health((note,)))
        except OSError as error:
            note = f"{trouble}; no temporary folder either ({_why(error)}): nothing is recorded of this job"
            return JobFolder(_NOWHERE / job_id, Health((note,)))

    def _make(self, job_id: JobId, health: Health) -> JobFolder:
        """Under its own name only once the lock is held, so that nobody ever sees a new job without an owner."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.jobs.mkdir(exist_ok=True, mode=0o700)
        path, draft = self.jobs / job_id, self.jobs / f".{job_id}"
        draft.mkdir(mode=0o700)
        lock: int | _Refusal = _Refusal.IMPOSSIBLE
        try:
            _check_room(draft)
            lock = _try_lock(draft / "lock", fcntl.LOCK_EX)
            (draft / "logs").mkdir(mode=0o700)
            (draft / "incidents").mkdir(mode=0o700)
            os.rename(draft, path)
        except OSError:
            if isinstance(lock, int):
                os.close(lock)
            shutil.rmtree(draft, ignore_errors=True)
            raise
        if not isinstance(lock, int):
            name = network_name(magic_of(path)) or "this file system"
            note = f"{self.root}: {name} keeps no locks, so whether this job lives cannot be seen from elsewhere"
            return JobFolder(path, health + Health((note,)))
        return JobFolder(path, health, lock)

    # -- looking

    def folders(self) -> list[JobFolder]:
        """Every job, oldest first."""
        try:
            names = sorted(entry.name for entry in os.scandir(self.jobs) if entry.is_dir())
        except OSError:
            return []
        return [JobFolder(self.jobs / name) for name in names if not name.startswith(".")]

    # -- bounds

    def prune(self, keep: int = KEEP_JOBS, total_bytes: int = KEEP_BYTES) -> Pruned:
        """Remove the oldest jobs that nobody holds until the rest is within both bounds. Never raises."""
        folders = self.folders()
        sizes = {folder.id: folder.size_bytes() for folder in folders}
        count, total = len(folders), sum(sizes.values())
        gone: list[str] = []
        freed = 0
        for folder in folders:
            if count <= keep and total <= total_bytes:
                break
            if _remove(folder.path):
                gone.append(folder.id)
                freed += sizes[folder.id]
                count, total = count - 1, total - sizes[folder.id]
        self._sweep_drafts()
        return Pruned(tuple(gone), freed)

    def _sweep_drafts(self) -> None:
        """What a job that died while its folder was being made has left, or a removal that was interrupted."""
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.jobs):
                if entry.name.startswith(".") and time.time() - entry.stat().st_mtime > _DRAFT_SECONDS:
                    _remove(Path(entry.path))


def _remove(path: Path) -> bool:
    """Remove a folder unless somebody holds its lock. Where locks cannot be had, nothing is ever removed."""
    lock = _try_lock(path / "lock", fcntl.LOCK_EX)
    if not isinstance(lock, int):
        return False
    grave = path.with_name(f".{path.name.lstrip('.')}")
    try:
        os.rename(path, grave)  # gone from every list at once, even if what follows is interrupted
        shutil.rmtree(grave, ignore_errors=True)
    except OSError:
        return False
    finally:
        os.close(lock)
    return not grave.exists()


class _Refusal(Enum):
    TAKEN = "somebody else holds it"
    IMPOSSIBLE = "the file cannot be opened, or this file system keeps no locks"


def _try_lock(path: Path, kind: int) -> int | _Refusal:
    """A descriptor that holds the lock, or why there is none."""
    how = os.O_RDONLY if kind == fcntl.LOCK_SH else os.O_RDWR | os.O_CREAT
    try:
        lock = os.open(path, how | os.O_CLOEXEC, 0o600)
    except OSError:
        return _Refusal.IMPOSSIBLE
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        return _Refusal.TAKEN if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else _Refusal.IMPOSSIBLE
    return lock


def _check_room(folder: Path) -> None:
    probe = folder / "probe"
    try:
        with open(probe, "wb", buffering=0) as file:
            file.write(bytes(_ROOM_BYTES))
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def _write_atomically(path: Path, data: bytes) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _write_through(draft, data)
        os.replace(draft, path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def _write_through(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def _why(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
