"""What workers print, on its way to the user's terminal or pipe and to the logs.

Raw and in order per rank, at least a line at a time, so that lines of different ranks are never mixed. On a terminal
with several ranks, lines carry their rank's colour and identical lines are folded into one. A reader that does not
read makes workers wait, as it would without us; it never makes the agent wait.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import string
import struct
import termios
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from holdfast.adapters.posix import Streams

OUT, ERR = "o", "e"
_CHUNK_BYTES = 2**18
_PIPE_BYTES = 2**20
_PATIENCE_BYTES = 8 * 2**20  # unwritten output after which workers are made to wait
_PARTIAL_SECONDS = 0.1  # how long the start of a line waits for its end
_FOLD_SECONDS = 0.05
_BEHIND_SECONDS = 0.02
_F_SETPIPE_SZ = 1031
_COLOURS = (36, 32, 35, 34, 33, 96, 92, 95)  # no red: red means error


class Sink(Protocol):
    """Where output is kept."""

    def keep_output(self, rank: int, incarnation: int, stream: str, data: bytes) -> None: ...

    def behind(self) -> bool: ...


class Writer:
    """Writes to one descriptor from a thread of its own, in order."""

    def __init__(self, fd: int, on_drained: Callable[[], None]) -> None:
        self._fd = fd
        self._on_drained = on_drained
        self._queue: deque[bytes] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._broken = False
        self._waited_for = False
        self._thread = threading.Thread(target=self._run, name=f"console-{fd}", daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        if self._broken or not data:
            return
        with self._changed:
            self._queue.append(data)
            self._bytes += len(data)
            self._changed.notify()

    def full(self) -> bool:
        """Must the caller wait? If so, it is told when it need not any more."""
        with self._changed:
            self._waited_for = self._waited_for or self._bytes > _PATIENCE_BYTES
            return self._bytes > _PATIENCE_BYTES

    def close(self, seconds: float) -> None:
        """Give what is queued this long to be read by whoever reads."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closing:
                    self._changed.wait()
                if not self._queue:
                    return
                data = b"".join(self._queue)
                self._queue.clear()
            self._write_all(data)
            with self._changed:
                self._bytes -= len(data)
                tell = self._waited_for and self._bytes <= _PATIENCE_BYTES
                self._waited_for = self._waited_for and not tell
            if tell:
                self._on_drained()

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self._broken:
            try:
                view = view[os.write(self._fd, view) :]
            except OSError:
                self._broken = True  # nobody reads any more: the job goes on, the logs have it all


class Loop(Protocol):
    """The few calls of an event loop that are needed here."""

    def add_reader(self, fd: int, callback: Callable[..., object], *args: object) -> None: ...
    def remove_reader(self, fd: int) -> bool: ...
    def call_later(self, delay: float, callback: Callable[..., object], *args: object) -> object: ...
    def call_soon_threadsafe(self, callback: Callable[..., object], *args: object) -> object: ...


@dataclass
class Source:
    """One stream of one process."""

    fd: int
    stream: str
    rank: int | None = None
    incarnation: int = 0
    shown: bool = True
    prefix: bytes = b""
    keep: list[Callable[[bytes], None]] = field(default_factory=list)
    partial: bytes = b""
    paused: bool = False
    open: bool = True


@dataclass(frozen=True)
class Style:
    """How a rank's stream is treated: torchrun's redirects, tees, filters and prefixes."""

    shown: bool = True
    prefix: str = ""
    files: tuple[str, ...] = ()
    filters: tuple[tuple[str, tuple[str, ...]], ...] = ()  # (file, words): lines with one of the words are copied


class Console:
    def __init__(self, loop: Loop, sink: Sink, *, ranks: int) -> None:
        self._loop = loop
        self._sink = sink
        self._ranks = ranks
        self._terminal = {OUT: os.isatty(1), ERR: os.isatty(2)}
        self._writers = {OUT: Writer(1, self._drained), ERR: Writer(2, self._drained)}
        self._sources: dict[str, list[Source]] = {}
        self._files: dict[str, int] = {}
        self._fold = Fold(self._writers, loop, ranks) if ranks > 1 else None

    # -- a process's streams

    def open(self, id: str) -> Streams:
        """New streams for a process: a terminal where Holdfast has one, else a pipe."""
        ends = []
        for stream in (OUT, ERR):
            read, write = _terminal() if self._terminal[stream] else _pipe()
            os.set_blocking(read, False)
            source = Source(read, stream)
            self._sources.setdefault(id, []).append(source)
            self._loop.add_reader(read, self._readable, source)
            ends.append(write)
        return Streams(*ends)

    def name(self, id: str, rank: int, incarnation: int, styles: dict[str, Style]) -> None:
        """From now on this process's output belongs to a rank."""
        for source in self._sources.get(id, ()):
            style = styles.get(source.stream, Style())
            source.rank, source.incarnation, source.shown = rank, incarnation, style.shown
            source.prefix = style.prefix.encode()
            source.keep = [self._copy_to(path) for path in style.files]
            source.keep += [self._filter_to(path, words) for path, words in style.filters]

    def close(self, id: str) -> None:
        """Read what is left and let go: the process is gone, whoever else holds its output."""
        for source in self._sources.pop(id, ()):
            while source.open and self._read(source):
                pass
            self._end(source)

    def say(self, text: str) -> None:
        """A line of our own: on stderr, after whatever was printed before it."""
        if self._fold:
            self._fold.flush()
        self._writers[ERR].write(text.encode("utf-8", "backslashreplace") + b"\n")

    def finish(self, seconds: float) -> None:
        for id in list(self._sources):
            self.close(id)
        if self._fold:
            self._fold.flush()
        for writer in self._writers.values():
            writer.close(seconds)
        for fd in self._files.values():
            os.close(fd)

    # -- bytes

    def _readable(self, source: Source) -> None:
        behind = self._sink.behind()
        if behind or self._writers[source.stream].full():
            source.paused = True
            self._loop.remove_reader(source.fd)
            if behind:
                self._loop.call_later(_BEHIND_SECONDS, self._resume)
            return
        self._read(source)

    def _drained(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._resume)

    def _resume(self) -> None:
        for sources in self._sources.values():
            for source in sources:
                if source.paused and source.open:
                    source.paused = False
                    self._loop.add_reader(source.fd, self._readable, source)

    def _read(self, source: Source) -> bool:
        """Take one piece; False when there is none now."""
        try:
            data = os.read(source.fd, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError:  # a terminal whose other end is closed
            data = b""
        if not data:
            self._end(source)
            return False
        if source.rank is not None:
            self._sink.keep_output(source.rank, source.incarnation, source.stream, data)
        for keep in source.keep:
            keep(data)
        self._show(source, data)
        return True

    def _show(self, source: Source, data: bytes) -> None:
        if not source.shown:
            return
        if self._ranks == 1 and not source.prefix:
            self._writers[source.stream].write(data)  # nobody to be mixed with: prompts and bars appear at once
            return
        data = source.partial + data
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        source.partial = data[cut:]
        if cut:
            self._lines(source, data[:cut])
        if source.partial:
            self._loop.call_later(_PARTIAL_SECONDS, self._show_partial, source, source.partial)

    def _show_partial(self, source: Source, seen: bytes) -> None:
        if source.partial == seen and source.open:
            source.partial = b""
            self._lines(source, seen)

    def _lines(self, source: Source, data: bytes) -> None:
        if source.prefix:
            data = b"".join(source.prefix + line for line in data.splitlines(keepends=True))
        if self._terminal[source.stream] and self._fold is not None and source.rank is not None and not source.prefix:
            self._fold.lines(source.stream, source.rank, data)
        else:
            self._writers[source.stream].write(data)

    def _end(self, source: Source) -> None:
        if not source.open:
            return
        source.open = False
        self._loop.remove_reader(source.fd)
        os.close(source.fd)
        if source.partial:
            self._lines(source, source.partial)
            source.partial = b""

    # -- files that the user asked for

    def _file(self, path: str) -> int | None:
        if path not in self._files:
            try:
                self._files[path] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            except OSError as error:
                self.say(f"holdfast: cannot write {path}: {error.strerror}")
                self._files[path] = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        return self._files[path]

    def _copy_to(self, path: str) -> Callable[[bytes], None]:
        fd = self._file(path)

        def copy(data: bytes) -> None:
            with contextlib.suppress(OSError):
                os.write(fd, data)  # type: ignore[arg-type]

        return copy

    def _filter_to(self, path: str, words: tuple[str, ...]) -> Callable[[bytes], None]:
        copy = self._copy_to(path)
        wanted = [word.encode() for word in words]
        rest = b""

        def filtered(data: bytes) -> None:
            nonlocal rest
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if any(word in line for word in wanted):
                    copy(line + b"\n")

        return filtered


class Fold:
    """Shows one line where several ranks print the same, and says how many did."""

    def __init__(self, writers: dict[str, Writer], loop: Loop, ranks: int) -> None:
        self._writers = writers
        self._loop = loop
        self._ranks = ranks
        self._held: dict[tuple[str, bytes], list[int]] = {}
        self._colour = "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"

    def lines(self, stream: str, rank: int, data: bytes) -> None:
        for line in data.splitlines(keepends=True):
            if not line.endswith(b"\n"):
                self._writers[stream].write(line)
                continue
            ranks = self._held.setdefault((stream, line), [])
            if rank in ranks:  # the same rank again: that is news
                self.flush()
                ranks = self._held.setdefault((stream, line), [])
            ranks.append(rank)
            if len(ranks) == self._ranks:
                self.flush()
        if self._held:
            self._loop.call_later(_FOLD_SECONDS, self.flush)

    def flush(self) -> None:
        held, self._held = self._held, {}
        for (stream, line), ranks in held.items():
            label = f"r{ranks[0]}" if len(ranks) == 1 else f"\u00d7{len(ranks)}"
            colour = _COLOURS[ranks[0] % len(_COLOURS)] if len(ranks) == 1 else 2
            head = f"\x1b[{colour}m{label:>4}\x1b[0m " if self._colour else f"{label:>4} "
            self._writers[stream].write(head.encode() + line)


def prefix_of(template: str, *, role: str, rank: int, local_rank: int, hostname: str) -> str:
    """torchrun's prefix for lines of a tee'd stream."""
    if not template:
        return f"[{role}{local_rank}]:"
    return string.Template(template).safe_substitute(
        role_name=role, rank=rank, local_rank=local_rank, hostname=hostname
    )


def _pipe() -> tuple[int, int]:
    read, write = os.pipe()
    with contextlib.suppress(OSError):
        fcntl.fcntl(write, _F_SETPIPE_SZ, _PIPE_BYTES)
    return read, write


def _terminal() -> tuple[int, int]:
    """A terminal of the size of ours that changes nothing on the way."""
    read, write = pty.openpty()
    attributes = termios.tcgetattr(write)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(write, termios.TCSANOW, attributes)
    size = os.get_terminal_size(2 if os.isatty(2) else 1)
    fcntl.ioctl(write, termios.TIOCSWINSZ, struct.pack("HHHH", size.lines, size.columns, 0, 0))
    return read, write
