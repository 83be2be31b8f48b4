"""Trackers keep one run through a job's lives: what the first life was given, the next one is told.

W&B reads its run from the environment, which is set when the job is planned. MLflow reads it too, but only MLflow can
make it: the run that the first life started is remembered and named to the next. TensorBoard has no runs, only folders:
a writer that chose its own folder chooses the same one again.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from holdfast.worker.importing import when_imported

MLFLOW_VARIABLE = "MLFLOW_RUN_ID"
Identity = dict[str, Any]


class Trackers:
    """Learns the identity in one life and gives it back in the next. Never raises into the script."""

    def __init__(self, known: Identity, tell: Callable[[Identity], None]) -> None:
        self._folders: list[str] = list(known.get("tensorboard", ()))
        self._run: str | None = known.get("mlflow")
        self._seen: Identity = {"tensorboard": [], "mlflow": None}
        self._tell = tell
        self._pid = os.getpid()

    def install(self) -> None:
        if self._run is not None and MLFLOW_VARIABLE not in os.environ:
            os.environ[MLFLOW_VARIABLE] = self._run
        when_imported("mlflow.tracking.fluent", self._hook_mlflow)
        when_imported("torch.utils.tensorboard.writer", self._hook_tensorboard)

    def _hook_mlflow(self, module: Any) -> None:
        start = module.start_run

        @functools.wraps(start)
        def start_run(*args: Any, **kwargs: Any) -> Any:
            run = start(*args, **kwargs)
            with contextlib.suppress(Exception):
                if self._seen["mlflow"] is None:
                    self._note("mlflow", run.info.run_id)
            return run

        module.start_run = start_run
        if (package := sys.modules.get("mlflow")) is not None:
            package.start_run = start_run  # type: ignore[attr-defined]

    def _hook_tensorboard(self, module: Any) -> None:
        begin = module.SummaryWriter.__init__

        @functools.wraps(begin)
        def initialise(writer: Any, log_dir: Any = None, *args: Any, **kwargs: Any) -> None:
            chosen = log_dir
            if log_dir is None and self._folders and os.getpid() == self._pid:
                chosen = self._folders.pop(0)
            begin(writer, chosen, *args, **kwargs)
            with contextlib.suppress(Exception):
                if log_dir is None:
                    self._note("tensorboard", [*self._seen["tensorboard"], os.path.abspath(writer.log_dir)])

        module.SummaryWriter.__init__ = initialise

    def _note(self, key: str, value: Any) -> None:
        self._seen[key] = value
        if os.getpid() == self._pid:
            self._tell(dict(self._seen))
