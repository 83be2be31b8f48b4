"""The board: one worker's shared page, written without locks or system calls and read by the agent.

It decides nothing. It fixes where each number lies and how a death is first seen: the worker's main thread holds a
process-shared robust mutex in the first bytes, and the kernel hands that mutex to the waiting agent before it gives
the dead process's memory back (`docs/decisions/0003`). The page is an anonymous memory file, so it outlives a SIGKILL
of its writer, never touches /dev/shm and is gone with the last process that holds it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from enum import IntEnum

SIZE_BYTES = 4096
UNKNOWN = -(2**62)
EOWNERDEAD = 130

_MUTEX_BYTES = 64  # pthread_mutex_t is 40 bytes on x86-64, 48 on aarch64
_MUTEX_WORDS = _MUTEX_BYTES // 8


class Word(IntEnum):
    """Index of each 64-bit signed number on the page, behind the mutex."""

    STAGE = 0
    STEPS = 1  # optimizer steps of this life
    STEP_AT = 2  # when the last one ended
    JOB_STEP = 3  # the job's own step, UNKNOWN if it cannot be known
    BASIS = 4
    COLLECTIVES = 5  # handed to the backend
    COLLECTIVE_AT = 6
    LABEL_OFFSET = 7  # job step minus the number the script writes into its checkpoints
    SCRIPT_AT = 8
    GROUP_AT = 9
    RESTORED_AT = 10
    FIRST_STEP_AT = 11
    RESUMED_FROM = 12  # the job's step this life started from


class Stage(IntEnum):
    WARM = 0
    RUNNING = 1
    IN_COLLECTIVE = 2  # the last thing seen was a collective: a survivor here would wait for ever
    FINISHED = 3
    RAISED = 4


class Basis(IntEnum):
    """How the job's step is known."""

    NONE = 0
    OPTIMIZER = 1  # the optimizer's own state counts it
    CHECKPOINT = 2  # the script wrote a step number into what it saves, and read it back
    FRESH = 3  # nothing was loaded, so this life's count is the job's
    UNKNOWABLE = 4


class Board:
    """One mapped page."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, SIZE_BYTES)
        self._words = memoryview(self._map)[_MUTEX_BYTES:].cast("q")
        self.mutex = RobustMutex(self._map)

    @staticmethod
    def create() -> int:
        """A descriptor of a new page with its mutex ready to be held."""
        fd = os.memfd_create("holdfast-board", os.MFD_CLOEXEC)
        os.ftruncate(fd, SIZE_BYTES)
        board = Board(fd)
        board.mutex.initialise()
        for word in (Word.JOB_STEP, Word.LABEL_OFFSET, Word.RESUMED_FROM):
            board[word] = UNKNOWN
        return fd

    def __getitem__(self, word: int) -> int:
        return self._words[word]

    def __setitem__(self, word: int, value: int) -> None:
        self._words[word] = value

    def known(self, word: int) -> int | None:
        value = self._words[word]
        return None if value == UNKNOWN else value


class RobustMutex:
    """A pthread mutex in shared memory whose owner's death is an answer, not a deadlock."""

    def __init__(self, page: mmap.mmap) -> None:
        self._cell = (ctypes.c_char * _MUTEX_BYTES).from_buffer(page)

    def initialise(self) -> None:
        attributes = (ctypes.c_char * 64)()
        _check(_libc.pthread_mutexattr_init(attributes))
        _check(_libc.pthread_mutexattr_setpshared(attributes, 1))
        _check(_libc.pthread_mutexattr_setrobust(attributes, 1))
        _check(_libc.pthread_mutex_init(self._cell, attributes))

    def hold(self) -> None:
        """Take it for the rest of this thread's life."""
        _check(_libc.pthread_mutex_lock(self._cell))

    def outlive(self) -> bool:
        """Block until the holder is gone; True if it died holding it. ctypes lets other threads run meanwhile."""
        return bool(_libc.pthread_mutex_lock(self._cell) == EOWNERDEAD)


_libc = ctypes.CDLL(None, use_errno=True)


def _check(status: int) -> None:
    if status:
        raise OSError(status, os.strerror(status))
