"""The board outlives its writer, and its mutex tells how."""

from __future__ import annotations

import os
import signal
import threading

from holdfast.adapters import proc
from holdfast.worker.board import SIZE_BYTES, UNKNOWN, Board, Stage, Word


def test_what_was_written_is_read_and_unknown_is_none():
    board = Board(Board.create())
    assert board.known(Word.JOB_STEP) is None
    board[Word.JOB_STEP] = 41
    assert board.known(Word.JOB_STEP) == 41
    assert board[Word.STEPS] == 0
    assert max(Word) * 8 + 64 < SIZE_BYTES
    assert UNKNOWN < 0


def test_a_kill_wakes_the_waiting_and_the_last_word_stays():
    fd = Board.create()
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        board = Board(fd)
        board.mutex.hold()
        board[Word.STAGE] = Stage.IN_COLLECTIVE
        os.write(write, b"x")
        signal.pause()
        os._exit(0)
    assert os.read(read, 1)
    board = Board(fd)
    died: list[bool] = []
    watch = threading.Thread(target=lambda: died.append(board.mutex.outlive()))
    watch.start()
    os.kill(pid, signal.SIGKILL)
    watch.join(10)
    assert died == [True]
    seen = proc.stat(pid)
    assert seen is not None
    assert seen.exiting
    assert proc.exit_of(seen.status).signal == signal.SIGKILL
    assert board[Word.STAGE] == Stage.IN_COLLECTIVE
    os.waitpid(pid, 0)
    assert proc.stat(pid) is None


def test_becoming_another_program_wakes_the_waiting_too_but_is_no_death():
    fd = Board.create()
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        board = Board(fd)
        board.mutex.hold()
        os.write(write, b"x")
        os.execvp("sleep", ["sleep", "30"])
    assert os.read(read, 1)
    board = Board(fd)
    assert board.mutex.outlive()
    seen = proc.stat(pid)
    assert seen is not None
    assert not seen.exiting
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
