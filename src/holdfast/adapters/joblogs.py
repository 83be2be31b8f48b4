"""What workers print, kept byte for byte and put in order again.

    logs/rank-R.out, rank-R.err     bytes as they came; from byte S on in `rank-R.out.S`, so `cat` and `grep` just work
    logs/index, index.N             32 bytes per chunk, in the order of arrival: the merge by time is done by writing

A thread writes. It never looks at a line: chunks go to a file as they are, neighbours in one call, and only who reads
splits them. Bounded twice: in memory, where `full` asks the agent to read no further before chunks are refused, and on
disk, where the oldest piece of the longest stream makes room. Whatever is lost is counted and said.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from enum import IntEnum
from pathlib import Path

import msgspec

from holdfast.ports.health import Health

LIMIT_BYTES = 2**30
MEMORY_BYTES = 64 * 2**20
FULL_BYTES = 16 * 2**20
CLOSE_SECONDS = 5.0
POLL_SECONDS = 0.2
_PIECES = 64  # the limit in pieces: what is dropped at once is 1/64 of it
_BATCH_BYTES = 8 * 2**20
_MERGE_NS = 10_000_000  # chunks of one stream this close together are one index entry
_TAIL_BYTES = 32 * 1024
_TAIL_INCARNATIONS = 3
_LINE_BYTES = 64 * 1024  # a line that does not end is cut here

_ENTRY = struct.Struct("<qIIQIBxxx")  # wall_ns, rank, incarnation, offset, length, stream
_SUFFIX = {"o": "out", "e": "err"}


class Chunk(msgspec.Struct, frozen=True):
    rank: int
    incarnation: int
    stream: str  # "o" or "e"
    wall_ns: int
    data: bytes


# -- writing


class LogWriter:
    """The agent's side. Nothing here waits for the disk but the thread, and nothing raises."""

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self._store = _Store(folder, limit_bytes)
        self._batch_bytes = min(_BATCH_BYTES, self._store.piece_bytes)
        self._change = threading.Condition()  # guards what follows
        self._waiting: deque[Chunk] = deque()
        self._waiting_bytes = 0
        self._writing = False
        self._refused = 0
        self._closing = False
        self._tails: dict[int, dict[int, _Tail]] = {}
        self._thread: threading.Thread | None = None

    def write(self, rank: int, incarnation: int, stream: str, wall_ns: int, data: bytes) -> None:
        if not data:
            return
        with self._change:
            self._tail_of(rank, incarnation).add(stream, data)
            if self._waiting_bytes + len(data) > MEMORY_BYTES or not self._started():
                self._refused += len(data)
                return
            self._waiting.append(Chunk(rank, incarnation, stream, wall_ns, data))
            self._waiting_bytes += len(data)
            self._change.notify_all()

    @property
    def full(self) -> bool:
        """The disk is behind: better let the worker wait than lose what it says."""
        return self._waiting_bytes > FULL_BYTES

    def tail(self, rank: int, lines: int = 20, incarnation: int | None = None) -> list[str]:
        """The last lines of a rank, of both streams, from memory: also when the disk is full. May run in any thread."""
        with self._change:
            known = self._tails.get(rank, {})
            found = known.get(max(known, default=0) if incarnation is None else incarnation)
            chunks = list(found.chunks) if found else []
        return _last_lines(chunks, lines)

    def health(self) -> Health:
        with self._change:
            lost = self._refused + self._store.lost
            notes = []
            if self._store.trouble:
                notes.append(f"output cannot be kept ({self._store.trouble}); the job goes on")
            if lost:
                notes.append(f"{lost} bytes of output are not kept")
            if self._store.dropped:
                limit = self._store.limit_bytes
                notes.append(
                    f"the logs reached their limit of {limit} bytes: the oldest {self._store.dropped} are gone"
                )
            return Health(tuple(notes), lost=lost, waiting=self._waiting_bytes)

    def flush(self, seconds: float = CLOSE_SECONDS) -> bool:
        """Wait until everything written so far has been handed to the disk."""
        with self._change:
            return self._change.wait_for(lambda: not self._waiting and not self._writing, seconds)

    def close(self) -> None:
        with self._change:
            self._closing = True
            self._change.notify_all()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def _started(self) -> bool:
        """The thread exists from the first output on: whoever forks before that has none to worry about."""
        if self._thread is None and not self._closing:
            thread = threading.Thread(target=self._run, name="holdfast-logs", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return False
            self._thread = thread
        return not self._closing

    def _tail_of(self, rank: int, incarnation: int) -> _Tail:
        tails = self._tails.setdefault(rank, {})
        if incarnation not in tails:
            tails[incarnation] = _Tail()
            for old in sorted(tails)[:-_TAIL_INCARNATIONS]:
                del tails[old]
        return tails[incarnation]

    def _run(self) -> None:
        while (batch := self._next_batch()) is not None:
            self._store.keep(batch)
            with self._change:
                self._writing = False
                self._change.notify_all()
        self._store.close()

    def _next_batch(self) -> list[Chunk] | None:
        with self._change:
            self._change.wait_for(lambda: self._waiting or self._closing)
            if not self._waiting:
                return None
            batch: list[Chunk] = []
            size = 0
            while self._waiting and (not batch or size + len(self._waiting[0].data) <= self._batch_bytes):
                chunk = self._waiting.popleft()
                batch.append(chunk)
                size += len(chunk.data)
            self._waiting_bytes -= size
            self._writing = True
            return batch


class _Tail:
    """The newest output of one life of one rank."""

    def __init__(self) -> None:
        self.chunks: deque[tuple[str, bytes]] = deque()
        self._bytes = 0

    def add(self, stream: str, data: bytes) -> None:
        data = data[-_TAIL_BYTES:]
        self.chunks.append((stream, data))
        self._bytes += len(data)
        while self._bytes - len(self.chunks[0][1]) >= _TAIL_BYTES:
            self._bytes -= len(self.chunks.popleft()[1])


def _last_lines(chunks: list[tuple[str, bytes]], count: int) -> list[str]:
    """Lines in the order in which they ended; what has not ended comes last."""
    pending: dict[str, bytes] = {}
    lines: list[bytes] = []
    for stream, data in chunks:
        *whole, rest = (pending.get(stream, b"") + data).split(b"\n")
        lines += whole
        pending[stream] = rest
    lines += [rest for rest in pending.values() if rest]
    return [_shown(line) for line in lines[-count:]] if count > 0 else []


class _Stream:
    """One growing sequence of bytes on disk, in pieces that are named by where they start."""

    def __init__(self, folder: Path, name: str, unit: int = 1) -> None:
        self._folder = folder
        self._name = name
        self._unit = unit  # bytes per counted thing: pieces of the index are named by entries
        self._fd: int | None = None
        self.pieces: list[tuple[int, int]] = []  # start, size
        self.end = 0

    @property
    def size(self) -> int:
        return sum(size for _, size in self.pieces)

    def append(self, data: bytes, piece_bytes: int) -> int:
        """How many bytes were written. Raises only when none were."""
        if self._fd is None or self.pieces[-1][1] >= piece_bytes:
            self._begin_piece()
        assert self._fd is not None
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, memoryview(data)[written:])
        except OSError:
            if not written:
                raise
        finally:
            start, size = self.pieces[-1]
            self.pieces[-1] = start, size + written
            self.end += written
        return written

    def cut_back(self, surplus: int) -> None:
        """Undo the last `surplus` bytes."""
        assert self._fd is not None
        start, size = self.pieces[-1]
        os.ftruncate(self._fd, size - surplus)
        self.pieces[-1] = start, size - surplus
        self.end -= surplus

    def drop_oldest(self) -> int:
        start, size = self.pieces.pop(0)
        if not self.pieces:
            self.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path(start))
        return size

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _begin_piece(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(self._path(self.end), flags, 0o600)
        self.close()
        self._fd = fd
        self.pieces.append((self.end, 0))

    def _path(self, start: int) -> str:
        return os.path.join(self._folder, f"{self._name}.{start // self._unit}" if start else self._name)


class _Store:
    """All streams of a job and their index. Used by one thread; the numbers may be read by others."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.piece_bytes = max(4096, limit_bytes // _PIECES)
        self.lost = 0
        self.dropped = 0
        self.trouble = ""
        self._folder = folder
        self._streams: dict[tuple[int, str], _Stream] = {}
        self._index = _Stream(folder, "index", _ENTRY.size)

    def keep(self, batch: list[Chunk]) -> None:
        """Bytes first, then where they are: a reader never finds an entry without its bytes."""
        trouble = ""
        groups: dict[tuple[int, str], list[int]] = {}
        for number, chunk in enumerate(batch):
            groups.setdefault((chunk.rank, chunk.stream), []).append(number)
        places = [(0, 0)] * len(batch)
        for key, numbers in groups.items():
            data = b"".join(batch[number].data for number in numbers)
            start, written, why = self._append(self._stream(key), data)
            trouble = trouble or why
            self.lost += len(data) - written
            for number in numbers:
                length = min(len(batch[number].data), written)
                places[number] = start, length
                start, written = start + length, written - length
        trouble = trouble or self._note(batch, places)
        self.trouble = trouble
        self._make_room()

    def _append(self, stream: _Stream, data: bytes) -> tuple[int, int, str]:
        try:
            if stream.end == 0:
                os.makedirs(self._folder, mode=0o700, exist_ok=True)
            start = stream.end
            written = stream.append(data, self.piece_bytes)
        except OSError as error:
            return stream.end, 0, (error.strerror or str(error)).lower()
        return start, written, "" if written == len(data) else "no space left on device"

    def _note(self, batch: list[Chunk], places: list[tuple[int, int]]) -> str:
        data = _entries(batch, places)
        if not data:
            return ""
        _, written, why = self._append(self._index, data)
        if torn := written % _ENTRY.size:
            with contextlib.suppress(OSError):
                self._index.cut_back(torn)
        return why

    def _make_room(self) -> None:
        while sum(stream.size for stream in self._streams.values()) > self.limit_bytes:
            longest = max(self._streams.values(), key=lambda stream: stream.size)
            self.dropped += longest.drop_oldest()
        while self._index.size > max(self.limit_bytes // 8, 2 * self.piece_bytes):
            self._index.drop_oldest()

    def _stream(self, key: tuple[int, str]) -> _Stream:
        if key not in self._streams:
            rank, stream = key
            self._streams[key] = _Stream(self._folder, f"rank-{rank}.{_SUFFIX[stream]}")
        return self._streams[key]

    def close(self) -> None:
        for stream in (*self._streams.values(), self._index):
            stream.close()


def _entries(batch: list[Chunk], places: list[tuple[int, int]]) -> bytes:
    """The index of a batch; neighbours of one stream become one entry."""
    merged: list[list[int]] = []
    for chunk, (offset, length) in zip(batch, places, strict=True):
        if not length:
            continue
        last = merged[-1] if merged else None
        if (
            last is not None
            and last[1:3] == [chunk.rank, chunk.incarnation]
            and last[5] == ord(chunk.stream)
            and last[3] + last[4] == offset
            and chunk.wall_ns - last[0] < _MERGE_NS
        ):
            last[4] += length
        else:
            merged.append([chunk.wall_ns, chunk.rank, chunk.incarnation, offset, length, ord(chunk.stream)])
    return b"".join(_ENTRY.pack(*fields) for fields in merged)


# -- reading


class LogLevel(IntEnum):
    INFO = 0
    WARNING = 1
    ERROR = 2


class Line(msgspec.Struct, frozen=True):
    wall: float
    rank: int
    incarnation: int
    stream: str
    text: str
    level: LogLevel = LogLevel.INFO


class Wanted(msgspec.Struct, frozen=True):
    """Which lines to show. None: all."""

    ranks: frozenset[int] | None = None
    incarnation: int | None = None
    stream: str | None = None
    grep: re.Pattern[str] | None = None
    level: LogLevel = LogLevel.INFO
    since: float | None = None
    until: float | None = None

    def chunk(self, rank: int, incarnation: int, stream: str) -> bool:
        return (
            (self.ranks is None or rank in self.ranks)
            and (self.incarnation is None or incarnation == self.incarnation)
            and (self.stream is None or stream == self.stream)
        )

    def line(self, line: Line) -> bool:
        return (
            line.level >= self.level
            and (self.since is None or line.wall >= self.since)
            and (self.until is None or line.wall <= self.until)
            and (self.grep is None or self.grep.search(line.text) is not None)
        )


EVERYTHING = Wanted()


class LogReader:
    """Lines of all ranks in the order in which they were begun to be written."""

    def __init__(self, folder: Path, wanted: Wanted = EVERYTHING) -> None:
        self._folder = folder
        self._wanted = wanted
        self._position = 0
        self._midway = False  # reading began where a line may have been under way
        self._open: dict[tuple[int, int, str], _Pending] = {}
        self._files: dict[str, tuple[int, int, int]] = {}  # name → start, end, descriptor

    def lines(self, tail: int | None = None) -> Iterator[Line]:
        """Everything that is there, or the last `tail` lines of it."""
        if tail is None:
            yield from self._new()
            yield from self._rest()
            return
        yield from self._last(tail)

    def follow(
        self,
        over: Callable[[], bool],
        tail: int | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Iterator[Line | None]:
        """What is there, then what comes, until the job is over. None: nothing new for the moment."""
        if tail is not None:
            yield from self._last(tail, rest=False)
        while True:
            ending = over()  # asked before the last look, so that nothing said in between is missed
            yield from self._new()
            if ending:
                break
            yield None
            sleep(POLL_SECONDS)
        yield from self._rest()

    # -- parts

    def _last(self, count: int, *, rest: bool = True) -> Iterator[Line]:
        """Read backwards in growing strides until there is enough."""
        first, end = self._bounds()
        stride = 1024
        while True:
            begin = max(first, end - stride)
            self._position = begin
            self._midway = begin > first
            self._open.clear()
            found: deque[Line] = deque(self._new(), maxlen=max(count, 0))
            if rest:
                found.extend(self._rest())
            if begin == first or len(found) >= count:
                yield from found
                return
            stride *= 8

    def _bounds(self) -> tuple[int, int]:
        pieces = _pieces(self._folder, "index")
        if not pieces:
            return 0, 0
        start, path = pieces[-1]
        return pieces[0][0], start + _size(path) // _ENTRY.size

    def _new(self) -> Iterator[Line]:
        for wall_ns, rank, incarnation, offset, length, stream in self._entries():
            name = chr(stream)
            if not self._wanted.chunk(rank, incarnation, name):
                continue
            file = f"rank-{rank}.{_SUFFIX.get(name, 'out')}"
            data = self._data(file, offset, length)
            if data is None:
                continue
            key = (rank, incarnation, name)
            if (pending := self._open.get(key)) is None:
                pending = self._open[key] = _Pending(rank, incarnation, name)
                if self._midway and offset and self._data(file, offset - 1, 1) != b"\n":
                    head, newline, data = data.partition(b"\n")
                    offset += len(head) + len(newline)
            yield from filter(self._wanted.line, pending.feed(wall_ns, data, offset))

    def _rest(self) -> Iterator[Line]:
        for pending in self._open.values():
            yield from filter(self._wanted.line, pending.end())

    def _entries(self) -> Iterator[tuple[int, int, int, int, int, int]]:
        while True:
            pieces = _pieces(self._folder, "index")
            if not pieces:
                return
            self._position = max(self._position, pieces[0][0])
            start, path = max(piece for piece in pieces if piece[0] <= self._position)
            try:
                with open(path, "rb") as file:
                    file.seek((self._position - start) * _ENTRY.size)
                    data = file.read(65536 * _ENTRY.size)
            except OSError:
                data = b""
            data = data[: len(data) - len(data) % _ENTRY.size]
            for entry in _ENTRY.iter_unpack(data):
                self._position += 1
                yield entry
            newer = [piece[0] for piece in pieces if piece[0] > start]
            if not data:
                if not newer:
                    return
                self._position = min(newer)

    def _data(self, name: str, offset: int, length: int) -> bytes | None:
        """The bytes, or None if they have been dropped."""
        for _ in range(2):  # a file that was the last when it was opened may have been followed by another
            if (place := self._place(name, offset)) is None:
                return None
            start, _, fd = place
            if data := os.pread(fd, length, offset - start):
                return data
            self._forget(name)
        return None

    def _place(self, name: str, offset: int) -> tuple[int, int, int] | None:
        known = self._files.get(name)
        if known is not None and known[0] <= offset < known[1]:
            return known
        self._forget(name)
        pieces = _pieces(self._folder, name)
        older = [piece for piece in pieces if piece[0] <= offset]
        if not older:
            return None
        start, path = older[-1]
        end = min((piece[0] for piece in pieces if piece[0] > offset), default=2**62)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        self._files[name] = start, end, fd
        return self._files[name]

    def _forget(self, name: str) -> None:
        if known := self._files.pop(name, None):
            os.close(known[2])

    def close(self) -> None:
        for name in list(self._files):
            self._forget(name)


class _Pending:
    """A stream between two chunks: the line that has begun, and whether it belongs to a traceback."""

    def __init__(self, rank: int, incarnation: int, stream: str) -> None:
        self._rank = rank
        self._incarnation = incarnation
        self._stream = stream
        self._rest = b""
        self._rest_ns = 0
        self._next: int | None = None  # where the next chunk should start
        self._tracing = False

    def feed(self, wall_ns: int, data: bytes, offset: int) -> Iterator[Line]:
        if self._next is not None and offset != self._next:
            self._rest = b""  # what came between has been dropped
        self._next = offset + len(data)
        begun_ns = self._rest_ns if self._rest else wall_ns
        *whole, rest = (self._rest + data).split(b"\n")
        for text in whole:
            yield self._line(begun_ns, text)
            begun_ns = wall_ns
        self._rest, self._rest_ns = rest, begun_ns
        if len(rest) > _LINE_BYTES:
            yield from self.end()

    def end(self) -> Iterator[Line]:
        if self._rest:
            yield self._line(self._rest_ns, self._rest)
            self._rest = b""

    def _line(self, wall_ns: int, data: bytes) -> Line:
        text = _shown(data)
        return Line(wall_ns / 1e9, self._rank, self._incarnation, self._stream, text, self._level(text))

    def _level(self, text: str) -> LogLevel:
        """A traceback is an error down to the line that names it."""
        text = _RANK_PREFIX.sub("", text)
        if self._tracing:
            self._tracing = text.startswith((" ", "\t"))
            return LogLevel.ERROR
        self._tracing = "Traceback (most recent call last)" in text
        return LogLevel.ERROR if self._tracing else level_of(text)


_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")  # torch's own, in tracebacks
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_ERROR = re.compile(
    r"^[\w.]*(?:Error|Exception|KeyboardInterrupt)\b"
    r"|^\[?[EFC]\d{4,}\b|\b(?:ERROR|CRITICAL|FATAL)\b|\bSegmentation fault\b|^Fatal Python error"
)
_WARNING = re.compile(r"\bWARN(?:ING)?\b|\b\w*Warning:|^\[?W\d{4,}\b")


def level_of(text: str) -> LogLevel:
    """By the prefixes that logging, warnings, glog and the interpreter use."""
    text = _ANSI.sub("", text[:400])
    if _ERROR.search(text):
        return LogLevel.ERROR
    return LogLevel.WARNING if _WARNING.search(text) else LogLevel.INFO


def _shown(data: bytes) -> str:
    """What a terminal would show of it in the end: a progress bar overwrites itself."""
    text = data.decode("utf-8", "replace").rstrip("\r")
    return text if "\r" not in text else text.rsplit("\r", 1)[1]


def _pieces(folder: Path, name: str) -> list[tuple[int, str]]:
    """Where each piece starts, and its path."""
    found = []
    with contextlib.suppress(OSError):
        for entry in os.listdir(folder):
            if entry == name:
                found.append((0, os.path.join(folder, entry)))
            elif entry.startswith(name + ".") and entry[len(name) + 1 :].isdigit():
                found.append((int(entry[len(name) + 1 :]), os.path.join(folder, entry)))
    return sorted(found)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
