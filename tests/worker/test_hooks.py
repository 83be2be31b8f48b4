"""Which step of the job a process is at, from what the script does and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # a process with threads must not fork

PRELUDE = """
import json, sys
from holdfast.worker.board import UNKNOWN, Basis, Board, Stage, Word
from holdfast.worker.hooks import Watch
board = Board(Board.create())
board[Word.LABEL_OFFSET] = START_OFFSET
messages = []
Watch(board, messages.append, learn=False).install()
import torch
def tell():
    first = next((m for m in messages if m["op"] == "first_step"), {})
    print(json.dumps({"count": board[Word.STEPS], "step": board.known(Word.JOB_STEP), "from": first.get("resumed_from"),
                      "basis": Basis(board[Word.BASIS]).name, "offset": board.known(Word.LABEL_OFFSET)}))
def model():
    return torch.nn.Linear(4, 4)
def train(net, *optimizers, steps):
    for _ in range(steps):
        net(torch.ones(2, 4)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
"""

CASES = {
    "fresh Adam counts from zero": (
        """
        net = model(); train(net, torch.optim.AdamW(net.parameters()), steps=3); tell()
        """,
        {"count": 3, "step": 3, "from": 0, "basis": "FRESH"},
    ),
    "a restored Adam knows its step": (
        """
        net = model(); old = torch.optim.AdamW(net.parameters()); train(net, old, steps=5)
        import io; kept = io.BytesIO(); torch.save(old.state_dict(), kept); kept.seek(0)
        board[Word.STEPS] = 0; board[Word.JOB_STEP] = UNKNOWN; messages.clear()
        new = torch.optim.AdamW(net.parameters()); new.load_state_dict(torch.load(kept))
        train(net, new, steps=2); tell()
        """,
        {"count": 2, "step": 7, "from": 5, "basis": "OPTIMIZER"},
    ),
    "a checkpoint's label, when it is known what it counts": (
        """
        import io; kept = io.BytesIO()
        torch.save({"step": 10, "w": torch.ones(1)}, kept); kept.seek(0); torch.load(kept)
        net = model(); train(net, torch.optim.SGD(net.parameters(), lr=0.1), steps=2); tell()
        """,
        {"count": 2, "step": 13, "from": 11, "basis": "CHECKPOINT"},
        1,
    ),
    "a label of unknown meaning is unknown": (
        """
        import io; kept = io.BytesIO()
        torch.save({"step": 10, "w": torch.ones(1)}, kept); kept.seek(0); torch.load(kept)
        net = model(); train(net, torch.optim.SGD(net.parameters(), lr=0.1), steps=2); tell()
        """,
        {"count": 2, "step": None, "from": None, "basis": "UNKNOWABLE"},
    ),
    "two optimizers are one step": (
        """
        net = model(); half = list(net.parameters())
        train(net, torch.optim.AdamW(half[:1]), torch.optim.SGD(half[1:], lr=0.1), steps=4); tell()
        """,
        {"count": 4, "step": 4},
    ),
    "what a label means is learned when it is written": (
        """
        import io
        net = model(); train(net, torch.optim.SGD(net.parameters(), lr=0.1), steps=4)
        torch.save({"step": 3}, io.BytesIO()); tell()
        """,
        {"step": 4, "offset": 1},
    ),
    "a step that torch makes to initialise a state is none": (
        """
        from torch.distributed.checkpoint.state_dict import get_state_dict
        net = model(); optimizer = torch.optim.AdamW(net.parameters()); get_state_dict(net, optimizer); tell()
        """,
        {"count": 0, "step": None},
    ),
    "a forked child counts for nobody": (
        """
        import os
        net = model(); optimizer = torch.optim.AdamW(net.parameters()); train(net, optimizer, steps=1)
        pid = os.fork()
        if not pid:
            train(net, optimizer, steps=5); os._exit(0)
        os.waitpid(pid, 0); tell()
        """,
        {"count": 1, "step": 1},
    ),
}


@pytest.fixture(scope="module")
def told() -> dict[str, dict[str, object]]:
    """What each case tells. torch is imported once; every case is a fork of that process."""
    parts = ["import os, sys, torch\n"]
    for name, (body, _expected, *offset) in CASES.items():
        prelude = PRELUDE.replace("START_OFFSET", str(offset[0]) if offset else "UNKNOWN")
        case = f"import sys; sys.stdout.write({name + chr(9)!r})\n" + prelude + textwrap.dedent(body)
        parts.append(f"sys.stdout.flush()\nif not (pid := os.fork()):\n    exec({case!r})\n    sys.stdout.flush()\n")
        parts.append("    os._exit(0)\nassert os.waitpid(pid, 0)[1] == 0\n")
    command = [sys.executable, "-W", "ignore", "-c", "".join(parts)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | ONE_THREAD)
    assert result.returncode == 0, result.stderr
    lines = (line.split("\t") for line in result.stdout.splitlines())
    return {name: json.loads(answer) for name, answer in lines}


@pytest.mark.parametrize("name", CASES)
def test_the_step_of_the_job(told, name):
    expected = CASES[name][1]
    assert {key: told[name][key] for key in expected} == expected
