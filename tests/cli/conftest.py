"""What the tests of the command line build on: one machine that never changes."""

from __future__ import annotations

import pytest

from holdfast.cli import flags, plan
from holdfast.cli.facts import MachineFacts, ScriptFacts, ScriptKind

TORCH_SCRIPT = b"import torch\n"


@pytest.fixture
def facts():
    """A machine of 8 processors, no GPU and memory for many spares, where the script imports torch."""

    def make(**changes):
        source = changes.pop("source", TORCH_SCRIPT)
        kind = changes.pop("kind", ScriptKind.FILE)
        values = {
            "cpu_count": 8,
            "available_bytes": 64 * 2**30,
            "gpu_count": 0,
            "torch_installed": True,
            "numpy_installed": True,
            "hostname": "node-a",
            "is_tty": False,
            "python": "/usr/bin/python3",
            "cwd": "/work",
            "script": ScriptFacts(kind, source),
            "run_id": "fresh-run-id",
        }
        return MachineFacts(**(values | changes))

    return make


@pytest.fixture
def planned(facts):
    """The plan of a launch line."""

    def make(*words, environ=None, **changes):
        environ = environ or {}
        if not {"train.py", "pkg.train", "./program"} & set(words):
            words = (*words, "train.py")
        namespace = flags.run_parser(environ=environ).parse_args(list(words))
        return plan.make_plan(namespace, environ, facts(**changes), "job-1")

    return make
