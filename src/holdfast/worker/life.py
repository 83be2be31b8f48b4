"""A process's life after birth: wait, become what the agent says, run the script as `__main__`, report how it ended.

What the script sees is what a fresh `python -u script.py` under torchrun would show it.
"""

from __future__ import annotations

import builtins
import contextlib
import faulthandler
import json
import os
import runpy
import signal
import sys
import time
import traceback
import types
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from typing import Any

from holdfast.worker import fresh, hooks, identity, wire
from holdfast.worker.birth import Birth
from holdfast.worker.board import UNKNOWN, Board, Stage, Word
from holdfast.worker.leaving import leave
from holdfast.worker.titles import set_title

TRACEBACK_LIMIT = 64 * 1024


class Reporter:
    """Sends messages to the agent; the script must never notice when that fails."""

    def __init__(self, birth: Birth) -> None:
        self._control = birth.control
        self._pid = os.getpid()

    def __call__(self, message: wire.Message) -> None:
        if os.getpid() != self._pid:
            return
        # An agent that is gone takes this process with it: nobody is left to report to.
        with contextlib.suppress(OSError):
            wire.send(self._control, message)


def live(birth: Birth) -> None:
    report = Reporter(birth)
    if birth.forked:
        fresh.restore_blas_threads()
        _warm_up(birth.device)
        fresh.reseed()
        set_title(birth.title)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    report({"op": "warm", "pid": os.getpid()})
    received = wire.receive(birth.control)
    if received is None:
        os._exit(0)
    message = received[0]
    if message["op"] == "store":
        from holdfast.worker import store

        set_title(message["title"])
        store.keep(birth.control, message)
        os._exit(0)
    _work(birth, report, message)


def _bind(mode: str, device: int) -> None:
    """Bind to the processors near a GPU, by torch's own rules."""
    from torch.numa import binding

    options = binding.NumaOptions(affinity_mode=binding.AffinityMode(mode))
    binding._maybe_apply_numa_binding_to_current_process(device_index=device, numa_options=options)


def _warm_up(device: int | None) -> None:
    """Run one tiny backward pass, so that its threads and first-use costs are paid before the process is needed."""
    if torch := sys.modules.get("torch"):
        place = "cpu"
        if device is not None and torch.cuda.is_available():
            place = f"cuda:{device % torch.cuda.device_count()}"
        weight = torch.nn.Parameter(torch.zeros(8, 8, device=place))
        (torch.zeros(8, 8, device=place) @ weight).sum().backward()


def _work(birth: Birth, report: Reporter, message: wire.Message) -> None:
    board = birth.board
    os.environ.update(message["env"])
    set_title(message["title"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if message["numa"]:
        _bind(message["numa"], int(os.environ["LOCAL_RANK"]))
    if os.environ.get("PYTHONFAULTHANDLER") != "0":
        with contextlib.suppress(Exception):  # a stderr without a descriptor cannot have one
            faulthandler.enable()

    board[Word.LABEL_OFFSET] = UNKNOWN if message["label_offset"] is None else message["label_offset"]
    watch = hooks.Watch(board, report, learn=message["learn"])
    watch.install()
    identity.Trackers(message["identity"], lambda known: report({"op": "identity", "known": known})).install()
    board[Word.SCRIPT_AT] = time.monotonic_ns()
    board[Word.STAGE] = Stage.RUNNING
    sys.argv = [message["script"], *message["arguments"]]
    code = _run(board, report, watch, message)
    if birth.forked:
        leave(code)
    sys.exit(code)


def _run(board: Board, report: Reporter, watch: Any, message: wire.Message) -> int:
    """Run the script to its end, whichever it is, and tell the agent; the exit code."""
    try:
        _RUNNERS[message["mode"]](message["script"])
    except SystemExit as error:
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
        code = _code_of(error)
        _ended(board, report, watch, code)
        return code
    except BaseException as error:
        board[Word.STAGE] = Stage.RAISED
        error = error.with_traceback(_script_frames(error))
        text = _bounded("".join(traceback.format_exception(error)))
        message_of = _message_of(error)
        _write_error_file(f"{type(error).__name__}: {message_of}", text)
        report({"op": "raised", "type": type(error).__name__, "message": message_of, "traceback": text})
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    _ended(board, report, watch, 0)
    return 0


def _ended(board: Board, report: Reporter, watch: Any, code: int) -> None:
    board[Word.STAGE] = Stage.RAISED if code else Stage.FINISHED
    watch.finish()
    report({"op": "ended", "code": code})


def _code_of(error: SystemExit) -> int:
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


def _run_script(path: str) -> None:
    path = os.path.abspath(path)  # as Python itself does for `__file__`
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    main = types.ModuleType("__main__")
    main.__file__ = path
    main.__cached__ = None  # type: ignore[attr-defined]
    main.__builtins__ = builtins  # type: ignore[attr-defined]
    main.__loader__ = SourceFileLoader("__main__", path)
    _keep_alive.append(sys.modules["__main__"])
    sys.modules["__main__"] = main
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    exec(code, main.__dict__)


def _run_module(name: str) -> None:
    main = types.ModuleType("__main__")
    main.__builtins__ = builtins  # type: ignore[attr-defined]
    _keep_alive.append(sys.modules["__main__"])
    sys.modules["__main__"] = main
    sys.path.insert(0, os.getcwd())
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]  # what `python -m` itself calls


def _run_path(path: str) -> None:
    runpy.run_path(path, run_name="__main__")


_RUNNERS: dict[str, Callable[[str], None]] = {"script": _run_script, "module": _run_module, "run_path": _run_path}
_keep_alive: list[types.ModuleType] = []


def _script_frames(error: BaseException) -> types.TracebackType | None:
    """The traceback from the script's first frame on: ours and the importer's say nothing to its author."""
    ours = os.path.dirname(os.path.abspath(__file__))
    trace = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith((ours, "<frozen")) and os.path.basename(name) != "runpy.py":
            break
        trace = trace.tb_next
    return trace


def _bounded(text: str) -> str:
    return text if len(text) <= TRACEBACK_LIMIT else text[:1024] + "\n[...]\n" + text[-(TRACEBACK_LIMIT - 1024) :]


def _message_of(error: BaseException) -> str:
    """What the exception says, if it can say it: its `__str__` is the script's own code."""
    try:
        return str(error)[:4096]
    except Exception:
        return "(its message cannot be had)"


def _write_error_file(what: str, text: str) -> None:
    """The file torchelastic's `@record` would write, unless it has."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path or os.path.exists(path):
        return
    details = {"py_callstack": text, "timestamp": str(int(time.time()))}
    data = {"message": {"message": what, "extraInfo": details}}
    with contextlib.suppress(OSError), open(path, "w") as file:
        json.dump(data, file)
