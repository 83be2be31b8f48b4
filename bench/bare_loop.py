"""The floor for this machine: the smallest thing that restarts a job from warm processes.

One process imports torch, forks the workers and a store, and waits for the first sign of a death (the same robust
mutex that Holdfast's agent waits for). Then: SIGKILL, make sure that everybody is dead, hand the next processes their
environment. `--rung spare` keeps them forked and warmed up beforehand, `--rung fork` forks them when they are needed.
No journal, no evidence, no logs, no verdict, no second chance for anything: what is slower than this is Holdfast's.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import itertools
import json
import os
import queue
import runpy
import signal
import socket
import sys
import threading

import torch
from torch.distributed import TCPStore

from holdfast.adapters.proc import deprioritise
from holdfast.worker.birth import die_with
from holdfast.worker.board import Board

REFILL_SECONDS = 0.4  # after a start, by when the first step is over


class Child:
    """A forked process, the socket to tell it what to be, and the mutex that tells when it is no more."""

    def __init__(self, role):
        self.control, far = socket.socketpair()
        board = Board.create()
        self.board, parent = Board(board), os.getpid()
        self.pid = os.fork()
        if not self.pid:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            die_with(parent)
            self.board.mutex.hold()
            role(far)
        far.close()
        os.close(board)

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        deprioritise(self.pid)  # giving its memory back must not keep the next processes waiting

    def watch(self, deaths):
        threading.Thread(target=lambda: (self.board.mutex.outlive(), deaths.put(self)), daemon=True).start()


def worker(control):
    weight = torch.nn.Parameter(torch.zeros(8, 8))
    (torch.zeros(8, 8) @ weight).sum().backward()  # starts autograd's threads and pays for first uses
    control.send(b"w")
    message = json.loads(control.recv(65536))
    os.environ.update(message["env"])
    sys.argv = message["argv"]
    runpy.run_path(sys.argv[0], run_name="__main__")
    control.send(b"e")
    raise SystemExit(0)


def store(control):
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    control.send(str(server.port).encode())
    while True:
        signal.pause()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--rung", choices=("spare", "fork"), default="spare")
    parser.add_argument("argv", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    for name in ("torch.nn.parallel.distributed", "torch.utils.serialization"):  # all that the script will import
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()

    deaths: queue.SimpleQueue = queue.SimpleQueue()
    spares, server, old = [], Child(store), None
    for restarts in itertools.count():
        crew = spares or [Child(worker) for _ in range(options.world)]
        port, spares = server.control.recv(16).decode(), []
        for rank, child in enumerate(crew):
            child.control.recv(1)
            env = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": options.world, "LOCAL_WORLD_SIZE": options.world}
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": "True"}
            env |= {"TORCHELASTIC_RESTART_COUNT": restarts}
            message = {"env": {name: str(value) for name, value in env.items()}, "argv": options.argv}
            child.control.send(json.dumps(message).encode())
        for child in crew:
            child.watch(deaths)
        old, server = server, None
        try:
            dead = deaths.get(timeout=REFILL_SECONDS)
        except queue.Empty:
            spares = [Child(worker) for _ in crew] if options.rung == "spare" else []
            server = Child(store)
            dead = deaths.get()
        dead.control.setblocking(False)
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            if dead.control.recv(1) == b"e":
                return
        for child in crew:
            child.kill()
        for _ in crew[1:]:
            deaths.get()
        old.kill()
        server = server or Child(store)
        for child in (*crew, old):
            child.control.close()


if __name__ == "__main__":
    main()
