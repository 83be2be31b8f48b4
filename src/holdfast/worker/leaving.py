"""How a forked process leaves: everything a script can rely on at exit, without taking a whole interpreter apart.

A forked process shares most of its memory with the nursery. Finalising the interpreter would touch, and so copy, all of
it, only to free it again: seconds for every rank. So threads are joined, exit handlers run and files are flushed as
Python does, and then the process ends. What does not run are `__del__` of objects that still live, which Python does
not promise either, and exit handlers of C libraries.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import os
import sys
import tempfile
import threading
import types
from typing import NoReturn


def leave(code: int) -> NoReturn:
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # what the interpreter itself calls: joins threads
        atexit._run_exitfuncs()
        _settle_files()
    except BaseException as error:
        sys.unraisablehook(
            types.SimpleNamespace(  # type: ignore[arg-type]
                exc_type=type(error),
                exc_value=error,
                exc_traceback=error.__traceback__,
                err_msg="Exception ignored while leaving",
                object=None,
            )
        )
    finally:
        ctypes.CDLL(None).fflush(None)
        os._exit(code)


def _settle_files() -> None:
    """Flush what the script left open and remove its temporary files; what the nursery froze is none of its own."""
    wrapper = tempfile._TemporaryFileWrapper
    for thing in gc.get_objects():
        with contextlib.suppress(Exception):
            if isinstance(thing, wrapper):
                thing.close()
            elif isinstance(thing, io.IOBase) and not thing.closed:
                thing.flush()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
