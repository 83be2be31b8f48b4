"""Counts steps and collectives without user code, and works out which step of the *job* this is.

A process's own count is not the job's: a resumed process starts at zero. The job's step comes from the optimizer's own
state where it keeps one, else from the step number that the script itself writes into its checkpoints and reads back,
else, when nothing was loaded, from the count. Where none of these holds it is unknown, and says so.

Every hook body is wrapped: what goes wrong here must never reach the script.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

from holdfast.worker import learn as learning
from holdfast.worker.board import UNKNOWN, Basis, Board, Stage, Word
from holdfast.worker.importing import when_imported

STEP_LABELS = ("step", "global_step", "iteration", "iter", "steps", "current_step", "iter_num")
_COUNT = "_holdfast_steps"
_BASE = "_holdfast_base"


class Watch:
    """Installs the hooks in one process and keeps its board up to date."""

    def __init__(self, board: Board, report: Callable[[dict[str, Any]], None], *, learn: bool) -> None:
        self._board = board
        self._report = report
        self._learn = learn
        self._pid = os.getpid()
        self._restored = False
        self._loaded_label: int | None = None
        os.register_at_fork(after_in_child=self._fall_silent)

    def install(self) -> None:
        when_imported("torch.optim.optimizer", self._hook_optimizer)
        when_imported("torch.distributed.distributed_c10d", self._hook_groups)
        when_imported("torch.serialization", self._hook_files)
        when_imported("torch.nn.modules.module", self._hook_modules)

    def finish(self) -> None:
        """Called when the script has ended: what it imported is now known in full."""
        self._tell_imports()

    # -- the optimizer

    def _hook_optimizer(self, module: ModuleType) -> None:
        module.register_optimizer_step_post_hook(self._stepped)
        optimizer = module.Optimizer
        optimizer.load_state_dict = self._after(optimizer.load_state_dict, self._optimizer_restored)

    def _stepped(self, optimizer: Any, _arguments: Any, _keywords: Any) -> None:
        try:
            if self._board is None:
                return
            now = time.monotonic_ns()
            own = optimizer.__dict__
            count = own.get(_COUNT, 0) + 1
            if count == 1 and _only_initialises():
                return
            own[_COUNT] = count
            if _BASE not in own:
                own[_BASE] = self._base_of(optimizer, count)
            board = self._board
            board[Word.STAGE] = Stage.RUNNING
            if count <= board[Word.STEPS]:
                return  # another optimizer has already counted this step
            board[Word.STEPS] = count
            if own[_BASE] is not None:
                board[Word.JOB_STEP] = own[_BASE] + count
            board[Word.STEP_AT] = now
            if count == 1:
                self._first_step(now, own[_BASE])
        except Exception:
            self._fall_silent()

    def _optimizer_restored(self, optimizer: Any) -> None:
        self._mark_restored()
        optimizer.__dict__.pop(_BASE, None)

    def _base_of(self, optimizer: Any, count: int) -> int | None:
        """The job's step before this optimizer's first step in this life."""
        board = self._board
        counted = _counted_steps(optimizer)
        offset = board[Word.LABEL_OFFSET]
        if counted is not None and counted > count:
            board[Word.BASIS] = Basis.OPTIMIZER
            return counted - count
        if self._loaded_label is not None and offset != UNKNOWN:
            board[Word.BASIS] = Basis.CHECKPOINT
            return self._loaded_label + offset
        if not self._restored:
            board[Word.BASIS] = Basis.FRESH
            return 0
        board[Word.BASIS] = Basis.UNKNOWABLE
        return None

    def _first_step(self, now: int, base: int | None) -> None:
        board = self._board
        board[Word.FIRST_STEP_AT] = now
        if base is not None:
            board[Word.RESUMED_FROM] = base
        self._report(
            {
                "op": "first_step",
                "at": now,
                "job_step": board.known(Word.JOB_STEP),
                "resumed_from": base,
                "basis": Basis(board[Word.BASIS]).name.lower(),
            }
        )
        self._tell_imports()

    def _tell_imports(self) -> None:
        if self._learn:
            self._learn = False
            self._report({"op": "imports"} | learning.imported())

    # -- process groups

    def _hook_groups(self, module: Any) -> None:
        wrapped = self._after(module.init_process_group, self._group_formed)
        module.init_process_group = wrapped
        if (package := sys.modules.get("torch.distributed")) is not None:
            package.init_process_group = wrapped  # type: ignore[attr-defined,unused-ignore]

    def _group_formed(self, _first: Any) -> None:
        self._board[Word.GROUP_AT] = time.monotonic_ns()
        group = sys.modules["torch.distributed.distributed_c10d"].group.WORLD
        if hasattr(group, "register_pre_hook"):
            group.register_pre_hook(id(self) % 2**31, self._collective)

    def _collective(self, _arguments: Any) -> None:
        try:
            board = self._board
            board[Word.COLLECTIVES] += 1
            board[Word.COLLECTIVE_AT] = time.monotonic_ns()
            board[Word.STAGE] = Stage.IN_COLLECTIVE
        except Exception:
            return  # raising here would abort the user's collective

    # -- what the script loads and saves

    def _hook_files(self, module: ModuleType) -> None:
        load = self._after(module.load, self._loaded, of_result=True)
        save = self._before(module.save, self._saving)
        for place in (module, sys.modules.get("torch")):
            if place is not None:
                place.load, place.save = load, save  # type: ignore[attr-defined]

    def _loaded(self, content: Any) -> None:
        self._mark_restored()
        label = step_label(content)
        if label is not None:
            self._loaded_label = label

    def _saving(self, content: Any) -> None:
        step = self._board.known(Word.JOB_STEP)
        label = step_label(content)
        if label is not None and step is not None:
            self._board[Word.LABEL_OFFSET] = step - label

    def _hook_modules(self, module: ModuleType) -> None:
        module.Module.load_state_dict = self._after(
            module.Module.load_state_dict, lambda _module: self._mark_restored()
        )

    def _mark_restored(self) -> None:
        self._restored = True
        self._board[Word.RESTORED_AT] = time.monotonic_ns()

    # -- wrapping

    def _after(
        self, function: Callable[..., Any], note: Callable[[Any], None], *, of_result: bool = False
    ) -> Callable[..., Any]:
        """The function, and afterwards a note of its first argument or of its result."""

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            self._noting(note, result if of_result else next(iter(args), None))
            return result

        return wrapper

    def _before(self, function: Callable[..., Any], note: Callable[[Any], None]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self._noting(note, args[0] if args else kwargs.get("obj"))
            return function(*args, **kwargs)

        return wrapper

    def _noting(self, note: Callable[[Any], None], value: Any) -> None:
        if self._board is None:
            return
        try:
            note(value)
        except Exception:
            self._fall_silent()

    def _fall_silent(self) -> None:
        """In a forked child, or after a surprise: count nothing rather than something wrong."""
        self._board = None  # type: ignore[assignment]
        self._report = lambda _message: None


def step_label(content: Any, depth: int = 2) -> int | None:
    """The step number a checkpoint carries, if it carries one under a usual name."""
    if not isinstance(content, dict):
        return None
    for key in STEP_LABELS:
        value = content.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    if depth > 1:
        for value in content.values():
            if (found := step_label(value, depth - 1)) is not None:
                return found
    return None


def _only_initialises() -> bool:
    """Is this step one that torch's checkpointing makes, with a learning rate of zero, to have a state to load into?"""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(12):
        if frame is None:
            return False
        if frame.f_code.co_name == "_init_optim_state":
            return True
        frame = frame.f_back
    return False


def _counted_steps(optimizer: Any) -> int | None:
    """How many steps the optimizer's own state says it has made, where that can be read without waiting for a GPU."""
    for state in optimizer.state.values():
        step = state.get("step") if isinstance(state, dict) else None
        if step is None:
            return None
        if hasattr(step, "device") and step.device.type != "cpu":
            return None
        return int(step)
    return None
