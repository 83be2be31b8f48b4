"""The training script on its own: one rank, no launcher."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.demo.launch import SCRIPT
from holdfast.demo.traces import Trace

pytestmark = pytest.mark.e2e


def train(folder: Path, *arguments: object, script: str = SCRIPT) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, script, "--folder", folder, "--batch", 150, *arguments]
    return subprocess.run(
        [str(word) for word in command], env=environment, capture_output=True, text=True, timeout=100, check=False
    )


def test_it_goes_on_exactly_where_it_was(tmp_path):
    """25 steps at once, and 15 with the rest after a restart: same losses, same samples, same weights."""
    assert train(tmp_path / "a", "--steps", 25, "--checkpoint-every", 10).returncode == 0
    assert train(tmp_path / "b", "--steps", 15, "--checkpoint-every", 10).returncode == 0
    assert train(tmp_path / "b", "--steps", 25, "--checkpoint-every", 10).returncode == 0
    whole, parts = (Trace(str(tmp_path / name), 1) for name in "ab")
    for trace in (whole, parts):
        trace.poll()
    assert [ready.step for ready in parts.ready] == [0, 10]
    told = {step.step: (step.loss, step.samples) for step in whole.steps}
    assert len(told) == 25
    assert len(parts.steps) == 30
    assert all(told[step.step] == (step.loss, step.samples) for step in parts.steps)
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in "ab"]
    assert results[0] == results[1]
    assert sorted(sample for step in whole.steps[:10] for sample in step.samples) == list(range(1500))


def test_it_trains_on_nothing_but_the_file_it_names(tmp_path):
    copy = tmp_path / "train.py"
    copy.write_text(Path(SCRIPT).read_text())
    (tmp_path / "digits.csv.gz").write_bytes(b"something else")
    done = train(tmp_path / "run", "--steps", 1, script=str(copy))
    assert done.returncode == 1
    assert "is not the file that DIGITS.md describes" in done.stderr


def test_it_knows_nothing_of_holdfast():
    assert "holdfast" not in Path(SCRIPT).read_text().lower()
