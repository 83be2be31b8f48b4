"""The nursery: a single-threaded process, free of CUDA, that has paid for the imports and forks ready processes.

It decides one thing, whether it is still fit to fork: with a second thread or an initialised accelerator a child could
inherit a lock that nobody will ever release, so it refuses and the agent takes the next rung. It never imports the
user's own code and never becomes a worker itself.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket
import sys
import time

from holdfast.worker import fresh, hooks, identity, life, wire
from holdfast.worker.birth import Birth, die_with, of_forked_process
from holdfast.worker.titles import set_title

# What every worker runs is imported here once, not by each of them at the moment when it is needed.
_READY_FOR_WORKERS = (hooks, identity, life)


def serve(control_fd: int) -> Birth:
    """Answer the agent until it goes away. Returns only in a forked child, as a birth."""
    control = socket.socket(fileno=control_fd)
    control.set_inheritable(False)
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hello = wire.receive(control)
    if hello is None:
        os._exit(0)
    agent_pid = int(hello[0]["agent_pid"])
    die_with(agent_pid)
    set_title(str(hello[0]["title"]))
    refused = _preload(control, hello[0]["modules"], bystanders=False)
    refused |= _preload(control, hello[0]["learned"], bystanders=True)
    _report(control, "ready", refused)
    while True:
        received = wire.receive(control)
        if received is None:
            os._exit(0)
        message, fds = received
        if message["op"] == "preload":
            refused = _preload(control, message["modules"], bystanders=True)
            _report(control, "preloaded", refused)
        elif message["op"] == "fork":
            unfit = unfitness()
            if unfit:
                wire.send(control, {"op": "refused", "id": message["id"], "reason": unfit})
            elif _fork_apart():
                control.close()
                control_fd, board_fd, *output = fds
                birth = of_forked_process(
                    control_fd, board_fd, (output[0], output[1]), agent_pid, own_group=message["own_group"]
                )
                birth.title, birth.device = message["title"], message["device"]
                return birth
            for fd in fds:
                os.close(fd)


def unfitness() -> str | None:
    """Why this process must not fork, if it must not."""
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return f"the nursery runs {threads} threads"
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        return "the nursery has initialised CUDA"
    return None


def _fork_apart() -> bool:
    """Fork a process that will be the agent's child, not ours. True in that process.

    Forked twice: the one in between leaves at once, and the kernel gives its child to the agent (a subreaper). So the
    nursery may die without its children, the agent may not, and statuses reach whoever must act on them.
    """
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    if os.fork():
        return False
    try:
        child = os.fork()
    except OSError:
        os._exit(1)
    if child:
        os._exit(0)
    return True


def _preload(control: socket.socket, modules: list[str], *, bystanders: bool) -> dict[str, str]:
    """Import each module; give up at the first that makes this process unfit, naming it."""
    refused: dict[str, str] = {}
    unfit: object = unfitness()
    for name in modules:
        if unfit or name in sys.modules:
            continue
        with fresh.watched_environment() as read, fresh.quiet_blas():
            try:
                importlib.import_module(name)
            except BaseException as error:  # whatever a third-party import does, the script will meet it itself
                refused[name] = f"{type(error).__name__}: {error}"
                continue
        unfit = unfitness() or (bystanders and read and f"it read {', '.join(sorted(read))} while being imported")
        if unfit:
            wire.send(control, {"op": "spoiled", "module": name, "learned": bystanders, "reason": unfit})
            time.sleep(3600)  # the agent replaces this process; a child forked now would be wrong
    if "torch" in sys.modules and not bystanders:
        _warm_torch()
    gc.collect()
    return refused


def _warm_torch() -> None:
    """Pay for what the first optimizer and the first backward import, which is more than torch itself.

    What these imports put into the environment is taken out again: the script has not asked for them yet.
    """
    import torch

    environment = dict(os.environ)
    try:
        torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
        importlib.import_module("torch.nn.parallel.distributed")
        importlib.import_module("torch.distributed.fsdp")
    except Exception as error:
        print(f"holdfast: warming torch failed, workers will do it themselves: {error}", file=sys.stderr)
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]


def _report(control: socket.socket, op: str, refused: dict[str, str]) -> None:
    wire.send(control, {"op": op, "refused": refused, "unfit": unfitness(), "modules": len(sys.modules)})
