"""What workers print: byte for byte on disk, in order for readers, bounded, and never in anybody's way."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.adapters.joblogs import LogLevel, LogReader, LogWriter, Wanted, level_of

SECOND = 1_000_000_000


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "logs"


@pytest.fixture
def writer(folder):
    made = LogWriter(folder)
    yield made
    made.close()


def _read(folder, tail=None, **wanted):
    reader = LogReader(folder, Wanted(**wanted))
    try:
        return list(reader.lines(tail))
    finally:
        reader.close()


def _texts(folder, tail=None, **wanted):
    return [line.text for line in _read(folder, tail, **wanted)]


def _whole(folder, name):
    """As `cat NAME*` in the order of the pieces."""
    pieces = sorted(folder.glob(name + "*"), key=lambda path: int(path.suffix[1:]) if path.suffix[1:].isdigit() else 0)
    return b"".join(path.read_bytes() for path in pieces)


def test_bytes_are_kept_as_they_came(writer, folder):
    chunks = [b"one\ntw", b"o\r\n", b"\xff\xfe\x00", b"\x1b[31mred\x1b[0m", b"\n"]
    for number, chunk in enumerate(chunks):
        writer.write(3, 1, "o", number * SECOND, chunk)
    writer.write(3, 1, "e", 9 * SECOND, b"err\n")
    writer.close()
    assert (folder / "rank-3.out").read_bytes() == b"".join(chunks)
    assert (folder / "rank-3.err").read_bytes() == b"err\n"
    assert _texts(folder) == ["one", "two", "��\x00\x1b[31mred\x1b[0m", "err"]


def test_merged_by_time_with_lines_across_chunks(writer, folder):
    writer.write(0, 1, "o", 1 * SECOND, b"r0 begins ")
    writer.write(1, 1, "o", 2 * SECOND, b"r1 whole\nr1 rest")
    writer.write(0, 1, "o", 3 * SECOND, b"and ends\n")
    writer.write(1, 2, "e", 4 * SECOND, b"next life\n")
    writer.flush()
    lines = _read(folder)
    assert [(line.wall, line.rank, line.incarnation, line.stream, line.text) for line in lines] == [
        (2.0, 1, 1, "o", "r1 whole"),
        (1.0, 0, 1, "o", "r0 begins and ends"),
        (4.0, 1, 2, "e", "next life"),
        (2.0, 1, 1, "o", "r1 rest"),
    ]


def test_filters(writer, folder):
    for rank in range(6):
        writer.write(rank, 1 + rank % 2, "oe"[rank % 2], rank * SECOND, f"rank {rank} says x{rank}\n".encode())
    writer.write(0, 1, "o", 7 * SECOND, b"WARNING: careful\nplain\nERROR: bad\n")
    writer.flush()
    assert _texts(folder, ranks=frozenset({1, 4}), until=5.5) == ["rank 1 says x1", "rank 4 says x4"]
    assert len(_read(folder, incarnation=2)) == 3
    assert len(_read(folder, stream="e")) == 3
    assert _texts(folder, grep=re.compile(r"x[35]$")) == ["rank 3 says x3", "rank 5 says x5"]
    assert _texts(folder, since=2.0, until=3.0) == ["rank 2 says x2", "rank 3 says x3"]
    assert _texts(folder, level=LogLevel.WARNING) == ["WARNING: careful", "ERROR: bad"]
    assert _texts(folder, level=LogLevel.ERROR) == ["ERROR: bad"]


def test_a_traceback_is_an_error_down_to_its_last_line(writer, folder):
    trace = b'Traceback (most recent call last):\n  File "a.py", line 1\n    x()\nkaboom.Odd: it broke\nafter\n'
    torch = b"".join(b"[rank0]: " + line + b"\n" for line in trace.splitlines()[:4])
    writer.write(0, 1, "e", SECOND, trace + torch + b"done\n")
    writer.flush()
    assert [line.level for line in _read(folder)] == [2, 2, 2, 2, 0, 2, 2, 2, 2, 0]


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("epoch 1 loss 0.3 error 0.01", LogLevel.INFO),
        ("no errors found", LogLevel.INFO),
        ("2026-11-19 12:00:00,000 - root - ERROR - bad", LogLevel.ERROR),
        ("ERROR:root:bad", LogLevel.ERROR),
        ("\x1b[31mERROR\x1b[0m bad", LogLevel.ERROR),
        ("E1119 12:00:00.000000 1 a.cpp:3] bad", LogLevel.ERROR),
        ("[W1119 12:00:00.000000 a.cpp:3] hm", LogLevel.WARNING),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory", LogLevel.ERROR),
        ("/x/a.py:3: UserWarning: hm", LogLevel.WARNING),
        ("Fatal Python error: Segmentation fault", LogLevel.ERROR),
        ("", LogLevel.INFO),
    ],
)
def test_levels(text, level):
    assert level_of(text) is level


def test_a_progress_bar_shows_its_last_state(writer, folder):
    writer.write(0, 1, "e", SECOND, b"\r 10%\r 20%")
    writer.write(0, 1, "e", SECOND, b"\r100%\r\n")
    writer.flush()
    assert _texts(folder) == ["100%"]
    assert (folder / "rank-0.err").read_bytes() == b"\r 10%\r 20%\r100%\r\n"


def test_the_last_lines_of_long_logs(writer, folder):
    for number in range(5000):
        writer.write(number % 2, 1, "o", number * SECOND, f"line {number} ".encode())
        writer.write(number % 2, 1, "o", number * SECOND, b"ends\n")
    writer.flush()
    assert _texts(folder, tail=3) == ["line 4997 ends", "line 4998 ends", "line 4999 ends"]
    assert len(_texts(folder, tail=4000)) == 4000
    assert len(_texts(folder, tail=50_000)) == 5000
    assert _texts(folder, tail=2, ranks=frozenset({0})) == ["line 4996 ends", "line 4998 ends"]
    assert _texts(folder, tail=1, grep=re.compile("line 7 ")) == ["line 7 ends"]
    assert _texts(folder, tail=0) == []


def test_tail_for_incidents_comes_from_memory(writer):
    writer.write(0, 1, "o", 1, b"a\nb\nc")
    writer.write(0, 1, "e", 2, b"oh\n")
    writer.write(0, 2, "o", 3, b"new life\n")
    assert writer.tail(0, 2, incarnation=1) == ["oh", "c"]
    assert writer.tail(0) == ["new life"]
    assert writer.tail(7) == []
    assert writer.tail(0, 0) == []
    writer.write(1, 1, "o", 4, b"x" * 100_000 + b"\nlast\n")
    assert writer.tail(1, 1) == ["last"]
    assert sum(map(len, writer.tail(1, 5))) < 70_000


def test_memory_of_old_lives_is_given_back(writer):
    for incarnation in range(1, 9):
        writer.write(0, incarnation, "o", 1, b"x\n")
    assert [bool(writer.tail(0, 1, incarnation)) for incarnation in range(1, 9)] == [False] * 5 + [True] * 3


def test_following_ends_with_the_job(writer, folder):
    moments = iter(
        [
            lambda: writer.write(0, 1, "o", 2 * SECOND, b"second\nthi"),
            lambda: writer.write(0, 1, "o", 3 * SECOND, b"rd\nunfinished"),
            lambda: None,
        ]
    )
    over = iter([False, False, False, True])
    writer.write(0, 1, "o", SECOND, b"first\n")
    writer.flush()

    def sleep(_seconds):
        next(moments)()
        writer.flush()

    reader = LogReader(folder)
    got = [line.text if line else None for line in reader.follow(lambda: next(over), sleep=sleep)]
    reader.close()
    assert got == ["first", None, "second", None, "third", None, "unfinished"]


def test_following_from_the_tail(writer, folder):
    writer.write(0, 1, "o", SECOND, b"a\nb\nc\nd")
    writer.flush()
    reader = LogReader(folder)
    got = [line.text for line in reader.follow(lambda: True, tail=2) if line]
    reader.close()
    assert got == ["b", "c", "d"]


def test_following_a_job_that_has_said_nothing_yet(tmp_path):
    reader = LogReader(tmp_path / "none")
    assert list(reader.follow(lambda: True)) == []
    assert list(reader.lines()) == list(reader.lines(5)) == []


# -- bounds


def test_the_longest_stream_makes_room_and_the_quiet_ones_keep_all(folder):
    writer = LogWriter(folder, limit_bytes=1_000_000)
    writer.write(1, 1, "o", 1, b"quiet\n")
    for number in range(400):
        writer.write(0, 1, "o", number * SECOND, b"%09d\n" % number * 1000)
        writer.flush()
    writer.close()
    sizes = sum(path.stat().st_size for path in folder.glob("rank-*"))
    assert sizes <= 1_000_000
    assert (folder / "rank-1.out").read_bytes() == b"quiet\n"
    (note,) = writer.health().notes
    assert "reached their limit" in note
    assert writer.health().lost == 0
    lines = _texts(folder)
    assert lines[0] == "quiet"
    assert lines[-1] == f"{399:09d}"
    kept = _whole(folder, "rank-0.out").decode().split()
    assert kept == [f"{n:09d}" for n in range(int(kept[0]), 400) for _ in range(1000)][-len(kept) :]
    assert set(lines[1:]) == set(kept)


def test_the_index_is_bounded_too(folder):
    writer = LogWriter(folder, limit_bytes=100_000)
    for number in range(2000):
        writer.write(0, 1, "o", number * SECOND, b"%d\n" % number)
        if number % 50 == 0:
            writer.flush()
    writer.close()
    assert sum(path.stat().st_size for path in folder.glob("index*")) <= 100_000 // 8 + 3 * 4096
    lines = _texts(folder)
    assert lines == [str(n) for n in range(2000 - len(lines), 2000)]
    assert len(lines) > 100
    assert _texts(folder, tail=2) == ["1998", "1999"]


def test_a_reader_keeps_up_with_pieces_that_come_and_go(folder):
    writer = LogWriter(folder, limit_bytes=1_000_000)
    reader = LogReader(folder)
    seen = []
    turns = iter(range(60))

    def sleep(_seconds):
        writer.write(0, 1, "o", SECOND, b"%d\n" % next(turns) * 3000)
        writer.flush()

    done = iter([False] * 60 + [True])
    seen = [line.text for line in reader.follow(lambda: next(done), sleep=sleep) if line]
    assert seen == [str(turn) for turn in range(60) for _ in range(3000)]
    reader.close()
    writer.close()


def test_what_memory_cannot_hold_is_refused_and_counted(folder, monkeypatch):
    monkeypatch.setattr("holdfast.adapters.joblogs.MEMORY_BYTES", 1000)
    writer = LogWriter(folder)
    writer.write(0, 1, "o", 1, bytes(2000))
    assert writer.health().lost == 2000
    writer.write(0, 1, "o", 1, b"fits\n")
    writer.close()
    assert _texts(folder) == ["fits"]


# -- a disk that does not want it


def test_a_folder_that_cannot_be_made(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    writer = LogWriter(blocked / "logs")
    writer.write(0, 1, "o", 1, b"hello\n")
    writer.flush()
    health = writer.health()
    assert health.lost == 6
    assert "cannot be kept (not a directory)" in health.notes[0]
    assert writer.tail(0) == ["hello"]
    writer.close()


_FULL = """
import json, resource, sys
from pathlib import Path
from holdfast.adapters.joblogs import LogReader, LogWriter
folder = Path(sys.argv[1])
writer = LogWriter(folder)
def say(text, at):
    writer.write(0, 1, "o", at * 10**9, text.encode())
    writer.flush()
say("before\\n", 1)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
say("x" * 150 + "\\n", 2)
say("nothing of this\\n", 3)
full = writer.health()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
say("\\nafter\\n", 4)
after = writer.health()
writer.close()
print(json.dumps([full.notes, full.lost, after.notes, after.lost, [l.text for l in LogReader(folder).lines()]]))
"""


def test_files_that_may_not_grow(folder):
    done = subprocess.run(
        [sys.executable, "-c", _FULL, str(folder)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    full, lost, after, lost_after, lines = json.loads(done.stdout)
    assert lost == lost_after == 151 - 93 + 16
    assert "cannot be kept" in full[0]
    assert after == [f"{lost} bytes of output are not kept"]
    assert lines[0] == "before"
    assert lines[-1] == "after"
    assert "nothing of this" not in lines


def test_bytes_of_many_writers_at_their_own_pace(writer, folder):
    """Whatever the batches were: each stream is whole, and the index covers it without gaps."""
    told = {}
    for number in range(3000):
        key = (number * 7 % 5, "oe"[number % 2])
        data = os.urandom(number % 50)
        told[key] = told.get(key, b"") + data
        writer.write(*key[:1], 1, key[1], number, data)
    writer.close()
    for (rank, stream), data in told.items():
        assert Path(folder / f"rank-{rank}.{'out' if stream == 'o' else 'err'}").read_bytes() == data
