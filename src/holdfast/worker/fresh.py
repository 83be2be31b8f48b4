"""What makes a forked process equal to a fresh interpreter, as far as that can be done.

The differences that remain (one string-hash seed for all ranks, variables that only matter before an import) are
listed in `docs/concepts/nursery.md`; what can be made equal is made equal here.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator

BLAS_VARIABLE = "OPENBLAS_NUM_THREADS"
_blas_threads: int | None = None  # what numpy would have started; None: it was not made to wait

# Reading one of these while being imported means that what was imported depends on who imported it.
IDENTITY_VARIABLES = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "ROLE_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_RESTART_COUNT",
        "CUDA_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
    }
)


@contextlib.contextmanager
def quiet_blas() -> Iterator[None]:
    """Keep numpy's BLAS from starting threads while it is imported: a process with threads must not fork."""
    global _blas_threads
    chosen = os.environ.get(BLAS_VARIABLE)
    wanted = chosen or os.environ.get("OMP_NUM_THREADS", "")
    _blas_threads = int(wanted) if wanted.isdigit() else len(os.sched_getaffinity(0))
    os.environ[BLAS_VARIABLE] = "1"
    try:
        yield
    finally:
        if chosen is None:
            del os.environ[BLAS_VARIABLE]
        else:
            os.environ[BLAS_VARIABLE] = chosen


@contextlib.contextmanager
def watched_environment() -> Iterator[set[str]]:
    """Collect which identity variables are read inside the block."""
    read: set[str] = set()

    class Watched(os._Environ):  # type: ignore[type-arg]
        def __getitem__(self, key: str) -> str:
            if key in IDENTITY_VARIABLES:
                read.add(key)
            return str(super().__getitem__(key))

    original = type(os.environ)
    os.environ.__class__ = Watched
    try:
        yield read
    finally:
        os.environ.__class__ = original


def reseed() -> None:
    """Give this process the random state a fresh one would have; `random` reseeds itself when forked."""
    if multiprocessing := sys.modules.get("multiprocessing.process"):
        multiprocessing.current_process().authkey = os.urandom(32)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()
        if torch.cuda.is_initialized():
            torch.cuda.seed_all()


def restore_blas_threads() -> None:
    """Undo `quiet_blas` in the child: numpy may use as many threads as it would have started with."""
    if _blas_threads in (None, 1) or "numpy" not in sys.modules:
        return
    with open("/proc/self/maps") as maps:
        libraries = {line.split()[-1] for line in maps if "openblas" in line}
    for path in sorted(libraries):
        library = ctypes.CDLL(path)
        for name in ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads"):
            if hasattr(library, name):
                getattr(library, name)(_blas_threads)
                break
