"""A journal in one SQLite file. A thread of its own writes; whoever appends never waits for the disk.

Whatever is waiting is committed at once (WAL, synchronous=FULL: on disk before the next batch). A disk that is full or
broken makes records wait, up to a bound; beyond it the oldest are lost, counted, and replaced by one snapshot of the
state when there is room again, so that folding works from there on. WAL needs shared memory between the processes that
open the file, which no network file system has: there the journal is kept in rollback mode instead, and says so.

One row holds the newest state, so that a list of jobs reads one row per job, and one what the job is.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec

import holdfast
from holdfast.adapters import plain, proc
from holdfast.adapters.filesystem import magic_of, network_name
from holdfast.core.record import Entry, Record, Snapshot, replay
from holdfast.model.spec import JobSpec
from holdfast.model.state import JobState
from holdfast.ports.health import Health

SCHEMA = 1
WAITING_LIMIT = 4096  # records in memory while the disk takes none: an hour at one per second
KEEP_RECORDS = 500_000  # the newest that are kept of one job: about 100 MB, six days at one per second
CLOSE_SECONDS = 5.0
_BUSY_SECONDS = 5.0
_SLOW_SECONDS = 10.0
_RETRY_SECONDS = 1.0
_TRIM_EVERY = 10_000

_Item = tuple[Record, JobState]

_TABLES = """
CREATE TABLE IF NOT EXISTS meta (
  one INTEGER PRIMARY KEY CHECK (one = 1), spec TEXT NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL,
  pid_started INTEGER NOT NULL, created REAL NOT NULL, version TEXT NOT NULL, schema INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS records (
  seq INTEGER PRIMARY KEY, at REAL NOT NULL, wall REAL NOT NULL, event TEXT NOT NULL, delta TEXT NOT NULL,
  actions TEXT NOT NULL, reason TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS snapshots (
  seq INTEGER PRIMARY KEY, at REAL NOT NULL, wall REAL NOT NULL, state TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS state (
  one INTEGER PRIMARY KEY CHECK (one = 1), seq INTEGER NOT NULL, at REAL NOT NULL, wall REAL NOT NULL,
  state TEXT NOT NULL);
"""


class Meta(msgspec.Struct, frozen=True):
    """What a journal says of its job before anything happened."""

    spec: JobSpec
    host: str
    pid: int
    pid_started: int  # clock ticks since boot
    created: float
    version: str
    schema: int = SCHEMA


class Head(msgspec.Struct, frozen=True):
    """The newest a journal knows."""

    meta: Meta
    seq: int = 0
    at: float = 0.0
    wall: float = 0.0
    state: JobState = JobState()


class UnreadableError(Exception):
    """This is no journal, or one that cannot be opened."""


class SqliteJournal:
    """The agent's side. Only one lives per file."""

    def __init__(self, path: Path, meta: Meta, magic: int, waiting_limit: int, keep_records: int) -> None:
        self._path = path
        self._meta = meta
        self._waiting_limit = waiting_limit
        self._keep_records = keep_records
        self._network = network_name(magic)
        self._connection: sqlite3.Connection | None = None
        self._since_trim = 0
        self._thread = threading.Thread(target=self._run, name="holdfast-journal", daemon=True)
        self._change = threading.Condition()  # guards what follows
        self._waiting: deque[_Item] = deque()
        self._writing: list[_Item] = []
        self._writing_since: float | None = None
        self._attempts = 0
        self._wanted = True  # the first turn writes what the job is
        self._urgent = False
        self._closing = False
        self._done = False
        self._gap: Snapshot | None = None  # the newest state whose record is lost
        self._lost = 0
        self._trouble = ""
        self._latest: tuple[int, JobState] | None = None

    @classmethod
    def create(
        cls,
        path: Path,
        spec: JobSpec,
        *,
        created: float,
        magic: int | None = None,
        waiting_limit: int = WAITING_LIMIT,
        keep_records: int = KEEP_RECORDS,
    ) -> SqliteJournal:
        """Begin a journal. `magic` is the file system's, looked up unless given."""
        pid = os.getpid()
        seen = proc.stat(pid)
        meta = Meta(
            spec=spec,
            host=socket.gethostname(),
            pid=pid,
            pid_started=seen.started if seen else 0,
            created=created,
            version=holdfast.__version__,
        )
        journal = cls(path, meta, magic_of(path.parent) if magic is None else magic, waiting_limit, keep_records)
        journal._start()
        return journal

    def _start(self) -> None:
        try:
            self._thread.start()
        except RuntimeError as error:  # no more threads for this user: not a reason not to train
            self._trouble, self._done = str(error), True

    # -- what the pump uses

    def append(self, record: Record, state: JobState) -> None:
        with self._change:
            self._waiting.append((record, state))
            self._latest = record.seq, state
            if len(self._waiting) > self._waiting_limit:
                self._lose()
            self._wanted = True
            self._change.notify_all()

    def health(self) -> Health:
        with self._change:
            notes = []
            if self._network:
                notes.append(f"the journal is on {self._network}: kept in rollback mode, because WAL cannot work there")
            if self._trouble:
                notes.append(f"the journal cannot be written ({self._trouble}); the job goes on without it")
            if self._writing_since is not None and time.monotonic() - self._writing_since > _SLOW_SECONDS:
                notes.append(f"the journal's disk has not answered for {time.monotonic() - self._writing_since:.0f} s")
            if self._lost:
                notes.append(f"{self._lost} records of the journal are lost")
            return Health(tuple(notes), lost=self._lost, waiting=len(self._waiting) + len(self._writing))

    def latest(self) -> tuple[int, JobState] | None:
        return self._latest

    def entries(self, after: int = 0) -> Iterator[Entry]:
        self.flush()
        try:
            return iter(list(read_entries(self._path, after)))
        except UnreadableError:
            return iter(())

    def records(self, after: int = 0) -> Iterator[Record]:
        return (entry for entry in self.entries(after) if isinstance(entry, Record))

    def flush(self, seconds: float = CLOSE_SECONDS) -> bool:
        """Wait until what was appended so far is on disk, or was tried in vain."""
        with self._change:
            tries = self._attempts + (2 if self._writing_since is not None else 1)
            self._wanted = self._urgent = True
            self._change.notify_all()
            self._change.wait_for(lambda: self._done or self._attempts >= tries, seconds)
            return not self._waiting and not self._writing

    def close(self) -> None:
        with self._change:
            self._closing = True
            self._change.notify_all()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)
        with self._change:
            while self._waiting:
                self._lose()

    # -- the writer

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        finally:
            with self._change:
                self._done = True
                self._change.notify_all()
            self._disconnect()

    def _turn(self) -> bool:
        """One commit of whatever waits. False: it was the last."""
        with self._change:
            if self._trouble:  # another try, but not one for each record
                self._change.wait_for(lambda: self._urgent or self._closing, _RETRY_SECONDS)
            self._change.wait_for(lambda: self._wanted or self._closing)
            last, gap = self._closing, self._gap
            self._wanted = self._urgent = False
            self._writing = list(self._waiting)
            self._waiting.clear()
            self._writing_since = time.monotonic()
        trouble = self._commit(self._writing, gap)
        with self._change:
            self._trouble = trouble
            self._attempts += 1
            self._writing_since = None
            if trouble:
                self._waiting.extendleft(reversed(self._writing))
            elif self._gap is gap:
                self._gap = None
            self._writing = []
            while len(self._waiting) > self._waiting_limit:
                self._lose()
            self._change.notify_all()
        return not last

    def _lose(self) -> None:
        record, state = self._waiting.popleft()
        self._lost += 1
        if self._gap is None or self._gap.seq < record.seq:
            self._gap = Snapshot(seq=record.seq, at=record.at, wall=record.wall, state=state)

    def _commit(self, batch: list[_Item], gap: Snapshot | None) -> str:
        """Empty, or why nothing was written."""
        try:
            connection = self._connection or self._connect()
            with _transaction(connection):
                if gap:
                    connection.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?)", _snapshot_row(gap))
                connection.executemany(
                    "INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?, ?, ?, ?)", [_row(record) for record, _ in batch]
                )
                if batch:
                    connection.execute("INSERT OR REPLACE INTO state VALUES (1, ?, ?, ?, ?)", _head_row(*batch[-1]))
            self._since_trim += len(batch)
            if self._since_trim >= min(_TRIM_EVERY, self._keep_records):
                self._trim(connection)
        except (sqlite3.Error, OSError) as error:
            self._disconnect()
            return str(error)
        return ""

    def _connect(self) -> sqlite3.Connection:
        """isolation_level=None: this module alone says where a transaction begins."""
        connection = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            connection.execute(f"PRAGMA journal_mode={'TRUNCATE' if self._network else 'WAL'}")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA journal_size_limit=1048576")
            with _transaction(connection):
                for statement in _TABLES.split(";"):
                    connection.execute(statement)
                connection.execute("INSERT OR IGNORE INTO meta VALUES (1, ?, ?, ?, ?, ?, ?, ?)", _meta_row(self._meta))
        except (sqlite3.Error, OSError):
            with contextlib.suppress(sqlite3.Error):
                connection.close()
            raise
        self._connection = connection
        return connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _trim(self, connection: sqlite3.Connection) -> None:
        """Keep the newest records; a snapshot stands in for the older ones."""
        self._since_trim = 0
        newest = connection.execute("SELECT max(seq) FROM records").fetchone()[0] or 0
        first = newest - self._keep_records
        entries = list(_select(connection, 0, first)) if first > 0 else []
        if not any(isinstance(entry, Record) for entry in entries):
            return
        before = replay(entries)
        if not before.whole:  # a hole whose snapshot is still to come
            return
        snapshot = Snapshot(seq=before.seq, at=entries[-1].at, wall=entries[-1].wall, state=before.state)
        with _transaction(connection):
            connection.execute("DELETE FROM snapshots WHERE seq <= ?", (first,))
            connection.execute("DELETE FROM records WHERE seq <= ?", (first,))
            connection.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?)", _snapshot_row(snapshot))


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


# -- reading, from any process


def read_head(path: Path) -> Head:
    """What the job is and its newest state."""
    with _reading(path) as connection:
        meta = connection.execute("SELECT spec, host, pid, pid_started, created, version, schema FROM meta").fetchone()
        if meta is None:
            raise UnreadableError(f"{path} has not been begun")
        if meta[-1] > SCHEMA:
            raise UnreadableError(f"{path} was written by a newer holdfast ({meta[-2]})")
        row = connection.execute("SELECT seq, at, wall, state FROM state").fetchone()
        known = Meta(msgspec.json.decode(meta[0], type=JobSpec), *meta[1:])
        if row is None:
            return Head(known)
        seq, at, wall, state = row
        return Head(known, seq, at, wall, msgspec.json.decode(state, type=JobState))


def read_entries(path: Path, after: int = 0, to: int | None = None) -> Iterator[Entry]:
    """Records and snapshots in order. A snapshot comes after the record of the same number."""
    with _reading(path) as connection:
        yield from _select(connection, after, 2**62 if to is None else to)


def _select(connection: sqlite3.Connection, after: int, to: int) -> Iterator[Entry]:
    query = """
        SELECT seq, 0 AS kind, at, wall, event, delta, actions, reason FROM records WHERE seq > :after AND seq <= :to
        UNION ALL
        SELECT seq, 1 AS kind, at, wall, state, '', '', '' FROM snapshots WHERE seq > :after AND seq <= :to
        ORDER BY seq, kind"""
    decode = msgspec.json.decode
    for seq, kind, at, wall, body, changes, actions, reason in connection.execute(query, {"after": after, "to": to}):
        if kind:
            yield Snapshot(seq, at, wall, decode(body, type=JobState))
        else:
            yield Record(seq, at, wall, decode(body), decode(changes), tuple(decode(actions)), reason)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    if not path.is_file():
        raise UnreadableError(f"{path} does not exist")
    connection = _open_for_reading(path)
    try:
        yield connection
    except (sqlite3.Error, msgspec.MsgspecError) as error:
        raise UnreadableError(f"{path}: {error}") from error
    finally:
        connection.close()


def _open_for_reading(path: Path) -> sqlite3.Connection:
    """In a folder that cannot be written to, memory cannot be shared with a writer: but there no writer is either."""
    uri = path.absolute().as_uri()
    connection = sqlite3.connect(f"{uri}?mode=ro", uri=True, timeout=_BUSY_SECONDS)
    try:
        connection.execute("SELECT 1 FROM meta").fetchone()
    except sqlite3.Error as error:
        connection.close()
        if getattr(error, "sqlite_errorcode", 0) & 0xFF not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
            raise UnreadableError(f"{path}: {error}") from error
        connection = sqlite3.connect(f"{uri}?immutable=1", uri=True)
    return connection


# -- rows


def _text(value: object) -> str:
    return plain.encode(value).decode()


def _row(record: Record) -> tuple[object, ...]:
    return (
        record.seq,
        record.at,
        record.wall,
        _text(record.event),
        _text(record.delta),
        _text(record.actions),
        record.reason,
    )


def _head_row(record: Record, state: JobState) -> tuple[object, ...]:
    return record.seq, record.at, record.wall, _text(state)


def _snapshot_row(snapshot: Snapshot) -> tuple[object, ...]:
    return snapshot.seq, snapshot.at, snapshot.wall, _text(snapshot.state)


def _meta_row(meta: Meta) -> tuple[object, ...]:
    return _text(meta.spec), meta.host, meta.pid, meta.pid_started, meta.created, meta.version, meta.schema
