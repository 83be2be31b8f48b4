"""torchrun's side of the comparison: failures are counted and shown, never left out."""

from __future__ import annotations

import io

from rich.console import Console

from holdfast.demo import compare, present
from holdfast.demo.compare import SETTINGS, Comparison, Outcome
from holdfast.demo.inject import Made
from holdfast.demo.plan import Fault, make
from holdfast.demo.verdict import Row, Seen


def test_a_kill_that_was_not_survived_is_shown_and_counted():
    faults = [
        Fault(number=1, step=20, kind="worker", ranks=(0,)),
        Fault(number=2, step=40, kind="worker", ranks=(1, 2)),
    ]
    rows = [Row(Made(fault, at_ns=0, back_at_ns=300_000_000), Seen(right=True, as_what="SIGKILL")) for fault in faults]
    outcomes = [Outcome(faults[0], 12.5), Outcome(faults[1], None, "not back within 60 s")]
    compared = [Comparison("default", outcomes, 2, 100.0, 1.5, ""), Comparison("other", outcomes, 1, 50.0, 2.5, "ab")]
    console = Console(file=io.StringIO(), width=120)
    present.comparison(console, compared, rows, "ab")
    text = console.file.getvalue()
    assert text.count("not back within 60 s") == 2
    assert text.count("1 of 2") == 2
    assert "2 of 2" in text
    assert "12.50 s" in text
    assert "never finished" in text
    assert text.count("equal to A") == 2
    assert "1.5" in text


def test_it_is_bounded_and_shows_both_settings():
    plan = make(seed=1, ranks=4, steps=400)
    assert compare.most_seconds(plan) < 1800
    assert any("TORCH_DISABLE_SHARE_RDZV_TCP_STORE" in setting.environment for setting in SETTINGS)
    assert any(not setting.environment and not setting.flags for setting in SETTINGS)
