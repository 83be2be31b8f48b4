"""Each claim holds on a good run, and falls when the one thing that it is about is not so."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from holdfast.adapters.injection import Kind, Victim
from holdfast.core.record import Record
from holdfast.demo import present, verdict
from holdfast.demo.conditions import Conditions
from holdfast.demo.inject import Made
from holdfast.demo.plan import Fault
from holdfast.demo.verdict import Facts
from holdfast.model.exits import Casualty, Exit
from holdfast.model.ids import Incarnation, ProcessId, Rank
from holdfast.model.state import Blame, Incident, JobState, Verdict
from tests.demo.story import SECOND, calm, hurt

STEPS = 20
PID = 1001  # rank 1 of the first life
RESULT = {"step": STEPS, "weights_sha256": "ab" * 32, "held_out": 297, "held_out_right": 280}
CONDITIONS = Conditions(2, 0.5, "Linux", "3.11", "2.15", seed=1, ranks=2, steps=STEPS)


def incident(*, rank: int = 1, pid: int = PID, signal: int = 9, at: float = 101.5001) -> Incident:
    casualty = Casualty(
        id=ProcessId("p2"), rank=Rank(rank), incarnation=Incarnation(1), at=at, pid=pid, exit=Exit(signal=signal)
    )
    judged = Verdict("crash", Blame.INFRASTRUCTURE, Rank(rank), "high", f"rank {rank} was killed by SIGKILL")
    return Incident(number=1, incarnation=1, opened_at=at, casualties=(casualty,), verdict=judged)


def entries(seconds: float) -> list[Record]:
    submitted = {"type": "Submitted"}
    return [Record(1, 100.0, 0.0, submitted, {"started_at": 100.0}), Record(2, 100.0 + seconds, 0.0, {"type": "x"}, {})]


class Case:
    """A good pair of runs; a test spoils one thing and asks again."""

    def __init__(self, folder: Path) -> None:
        self.told = hurt(folder / "b", STEPS)
        trace = self.told.trace()
        state = JobState(incidents={"1": incident()})
        self.calm = Facts(0, 10.0, calm(folder / "a", STEPS), dict(RESULT), JobState(), entries(9.0), [], "job-a")
        self.hurt = Facts(0, 12.0, trace, dict(RESULT), state, entries(11.0), [], "job-b")
        fault = Fault(number=1, step=13, kind="worker", ranks=(1,))
        victim = Victim(Kind.WORKER, PID, agent_pid=1, rank=1)
        self.made = [Made(fault, at_ns=int(101.5 * SECOND), victims=(victim,), life=0)]
        self.made[0].back_life, self.made[0].back_at_ns = 1, trace.whole_at(1)

    def judge(self) -> verdict.Verdict:
        return verdict.judge(self.calm, self.hurt, self.made, STEPS)

    def failed(self) -> list[str]:
        return [claim.name for claim in self.judge().claims if not claim.holds]

    def shown(self) -> str:
        console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system="standard")
        present.verdict(console, self.judge(), self.calm, self.hurt, CONDITIONS)
        return console.file.getvalue()


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_a_good_run(case):
    judged = case.judge()
    assert case.failed() == []
    row = judged.rows[0]
    assert row.holds
    assert row.replayed_steps == 3
    assert (row.replays, row.replays_equal) == (6, 6)
    assert row.seen.detect_seconds == pytest.approx(0.0001)
    assert row.made.back_seconds == pytest.approx(0.3, abs=0.2)
    assert "All 11 claims hold." in case.shown()


def spoil_loss(case):
    case.told.step(1, 17, loss=0.5)
    case.hurt.trace = case.told.trace()


def spoil_replay(case):
    case.told.life = 0
    case.told.step(1, 12, loss=0.25)
    case.hurt.trace = case.told.trace()


def spoil_samples(case):
    case.told.step(0, 20, samples=[0] * 150)
    case.hurt.trace = case.told.trace()


def spoil_wall(case):
    at = case.hurt.entries[-1]
    case.hurt.entries = [msgspec.structs.replace(at, seq=1, at=100.0), msgspec.structs.replace(at, seq=2, at=100.0)]
    case.hurt.entries = []


SPOILT = {
    "exit code": (lambda case: setattr(case.hurt, "exit_code", 1), ["both runs completed"]),
    "stopped early": (lambda case: case.calm.result.update(step=19), ["both runs completed"]),
    "not made": (
        lambda case: setattr(case.made[0], "at_ns", None),
        ["every kill of the plan was made", "each kill seen for what it was", "all ranks back after every kill"],
    ),
    "not back": (lambda case: setattr(case.made[0], "back_at_ns", None), ["all ranks back after every kill"]),
    "not noticed": (
        lambda case: setattr(case.hurt, "state", JobState()),
        ["each kill seen for what it was"],
    ),
    "wrong rank": (
        lambda case: setattr(case.hurt, "state", JobState(incidents={"1": incident(rank=0)})),
        ["each kill seen for what it was"],
    ),
    "wrong signal": (
        lambda case: setattr(case.hurt, "state", JobState(incidents={"1": incident(signal=11)})),
        ["each kill seen for what it was"],
    ),
    "another process": (
        lambda case: setattr(case.hurt, "state", JobState(incidents={"1": incident(pid=4)})),
        ["each kill seen for what it was"],
    ),
    "an incident too many": (
        lambda case: setattr(case.hurt, "state", JobState(incidents={"1": incident(), "2": incident(pid=4)})),
        ["each kill seen for what it was"],
    ),
    "a loss": (spoil_loss, ["losses equal, A and B", "replayed steps equal the first time"]),
    "a replay": (spoil_replay, ["replayed steps equal the first time"]),
    "samples": (spoil_samples, ["replayed steps equal the first time", "each sample once per epoch"]),
    "weights": (lambda case: case.hurt.result.update(weights_sha256="cd" * 32), ["final weights equal"]),
    "no weights": (
        lambda case: [facts.result.pop("weights_sha256") for facts in (case.calm, case.hurt)],
        ["final weights equal"],
    ),
    "accuracy": (lambda case: case.hurt.result.update(held_out_right=279), ["held-out accuracy equal"]),
    "no journal": (spoil_wall, ["buckets sum to wall time"]),
    "left over": (lambda case: case.calm.left_over.append(77), ["nothing left running"]),
}


@pytest.mark.parametrize("what", SPOILT)
def test_a_spoilt_run(case, what):
    spoil, failed = SPOILT[what]
    spoil(case)
    assert case.failed() == failed
    assert not case.judge().holds


def test_a_failed_claim_is_red(case):
    case.hurt.result.update(weights_sha256="cd" * 32)
    shown = case.shown()
    red = next(line for line in shown.splitlines() if "final weights equal" in line)
    assert "✗" in red
    assert "\x1b[1;31m" in red
    assert "1 of 11 claims failed." in shown
    assert "claims hold" not in shown


def test_a_sample_that_comes_twice_in_both_runs_is_caught(case):
    """Equal runs can be equally wrong."""
    for told in (case.told,):
        told.step(0, 3, samples=[0] * 150)
    assert "each sample once per epoch" in [
        c.name
        for c in verdict.judge(
            Facts(0, 1.0, case.told.trace(), dict(RESULT), JobState(), entries(1.0), []),
            Facts(0, 1.0, case.told.trace(), dict(RESULT), JobState(), entries(1.0), []),
            [],
            STEPS,
        ).claims
        if not c.holds
    ]
