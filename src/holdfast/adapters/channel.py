"""A socket to another process of ours that never makes the agent wait: what cannot be sent yet is kept for later."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable

from holdfast.worker import wire

OUTBOX_LIMIT_BYTES = 64 * 2**20
_READ_BYTES = 2**18


class Channel:
    """Messages in by callback, messages out by `send`. Descriptors handed to `send` are closed here once sent."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        on_message: Callable[[wire.Message], None],
        on_end: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._socket = sock
        self._decoder = wire.Decoder()
        self._on_message = on_message
        self._on_end = on_end
        self._outbox: deque[tuple[memoryview, tuple[int, ...]]] = deque()
        self._waiting_bytes = 0
        self._open = True
        sock.setblocking(False)
        loop.add_reader(sock, self._readable)

    def send(self, message: wire.Message, fds: tuple[int, ...] = ()) -> bool:
        """Queue a message; False when the other end is gone or has not read for far too long."""
        data = wire.encode(message)
        if not self._open or self._waiting_bytes + len(data) > OUTBOX_LIMIT_BYTES:
            _close_all(fds)
            return False
        self._outbox.append((memoryview(data), fds))
        self._waiting_bytes += len(data)
        if len(self._outbox) == 1:
            self._flush()
        return self._open

    def drain(self) -> None:
        """Hand over what has arrived already: a last word comes before the death that follows it."""
        while self._open and self._take():
            pass

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        for _data, fds in self._outbox:
            _close_all(fds)
        self._outbox.clear()

    def _flush(self) -> None:
        try:
            while self._outbox:
                data, fds = self._outbox[0]
                sent = socket.send_fds(self._socket, [data], fds) if fds else self._socket.send(data)
                _close_all(fds)
                self._waiting_bytes -= sent
                if sent < len(data):
                    self._outbox[0] = (data[sent:], ())
                else:
                    self._outbox.popleft()
            self._loop.remove_writer(self._socket)
        except BlockingIOError:
            self._loop.add_writer(self._socket, self._flush)
        except OSError:
            self._end()

    def _readable(self) -> None:
        self._take()

    def _take(self) -> bool:
        """Read one piece; False when there is none."""
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._end()
            return False
        for message in self._decoder.feed(data):
            self._on_message(message)
        return True

    def _end(self) -> None:
        if self._open:
            self.close()
            self._on_end()


def _close_all(fds: tuple[int, ...]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
