"""Messages between the agent and the processes it starts: a length, then JSON; descriptors ride along where needed.

JSON and not msgpack, because this end may run in an interpreter that has nothing but the standard library.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from typing import Any

Message = dict[str, Any]

LIMIT_BYTES = 16 * 2**20
FD_LIMIT = 8
_HEADER = struct.Struct("!I")


def encode(message: Message) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode("utf-8", "surrogateescape")
    return _HEADER.pack(len(body)) + body


def send(sock: socket.socket, message: Message, fds: tuple[int, ...] = ()) -> None:
    """Send all of a message, waiting as long as the socket is set to."""
    data = encode(message)
    sent = socket.send_fds(sock, [data], fds) if fds else 0
    sock.sendall(memoryview(data)[sent:])


def receive(sock: socket.socket) -> tuple[Message, list[int]] | None:
    """The next message with its descriptors, or None when the other end is gone."""
    try:
        return _receive(sock)
    except ConnectionError:
        return None


def _receive(sock: socket.socket) -> tuple[Message, list[int]] | None:
    header, fds = b"", []
    while len(header) < _HEADER.size:
        data, more, _flags, _address = socket.recv_fds(sock, _HEADER.size - len(header), FD_LIMIT)
        if not data:
            return None
        header += data
        fds += more
    (size,) = _HEADER.unpack(header)
    body = bytearray()
    while len(body) < size:
        chunk = sock.recv(min(size - len(body), 2**20))
        if not chunk:
            return None
        body += chunk
    return json.loads(body.decode("utf-8", "surrogateescape")), fds


class Decoder:
    """Turns a stream that arrives in pieces into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            (size,) = _HEADER.unpack_from(self._buffer)
            if size > LIMIT_BYTES:
                raise ValueError(f"a message of {size} bytes exceeds the limit of {LIMIT_BYTES}")
            if len(self._buffer) < _HEADER.size + size:
                return
            body = bytes(self._buffer[_HEADER.size : _HEADER.size + size])
            del self._buffer[: _HEADER.size + size]
            yield json.loads(body.decode("utf-8", "surrogateescape"))
