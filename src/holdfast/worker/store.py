"""The keeper: a warm process that serves the incarnation's store, so that the launcher never imports torch.

One server at a time. The next incarnation's server opens on the same port only after the last one is closed, so
nothing written for one incarnation can be read by another.
"""

from __future__ import annotations

import datetime
import socket
from typing import Any

from holdfast.worker import wire


class Keeper:
    """Holds at most one store server."""

    def __init__(self) -> None:
        self._server: Any = None

    def open(self, host: str, port: int) -> int:
        from torch.distributed import TCPStore

        self._server = None  # closes the last incarnation's server before the next one opens
        timeout = datetime.timedelta(seconds=30)
        self._server = TCPStore(host, port, is_master=True, wait_for_workers=False, timeout=timeout)
        return int(self._server.port)


def keep(control: socket.socket, first: wire.Message) -> None:
    """Serve stores until the agent goes away."""
    keeper = Keeper()
    message: wire.Message | None = first
    while message is not None:
        answer: wire.Message = {"op": "store", "incarnation": message["incarnation"]}
        try:
            answer["port"] = keeper.open(message["host"], message["port"])
        except Exception as error:
            answer["error"] = str(error).splitlines()[0]
        wire.send(control, answer)
        received = wire.receive(control)
        message = received[0] if received else None
