"""A port that nobody else is given until rank 0 listens on it."""

from __future__ import annotations

import socket

import psutil


def hold(port: int) -> socket.socket:
    """Bind and do not listen: a process that knows the port may bind beside us, chance does not hit it."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("", port))
        probe.listen(1)  # only listening tells whether somebody else does
        port = probe.getsockname()[1]
    held = socket.socket(family)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", port))
    return held


def trouble(port: int, error: OSError) -> str:
    """Why the port could not be had, and who has it."""
    return f"port {port}: {error.strerror.lower() if error.strerror else error}{_holder(port)}"


def _holder(port: int) -> str:
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return f" (pid {connection.pid}, {psutil.Process(connection.pid).name()})"
    except psutil.Error:
        pass
    return "; choose another with --master-port, or leave it out"
