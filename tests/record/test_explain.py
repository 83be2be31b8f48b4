"""One screen that tells what happened, and claims nothing that is not known."""

from __future__ import annotations

import pytest

from holdfast.core.explain import Gathered, duration, explain, text
from holdfast.model.state import Blame
from tests.record.stories import WALL, Story, recovered_once


def _told(story, number=1, **gathered):
    incident = story.state.incidents[str(number)]
    return explain(incident, story.state, "job-1", Gathered(**gathered), WALL)


def test_a_recovery_with_every_phase():
    told = _told(recovered_once(), host="node-a", tails={"1": ["step 16", "step 17"]}, kernel=["oom-kill: pid 1002"])
    assert (told.where.host, told.where.rank, told.where.incarnation, told.where.pid) == ("node-a", 1, 1, 1002)
    assert told.exit == "signal 9 (SIGKILL)"
    assert told.verdict.blame is Blame.INFRASTRUCTURE
    assert "oom-kill: pid 1002" in told.evidence
    assert {phase.name: phase.seconds for phase in told.phases} == pytest.approx(
        {
            "detect": 0.25,
            "release": 0.125,
            "decide": 0.0,
            "muster": 0.5,
            "regroup": 0.25,
            "restore": 0.25,
            "first step": 0.5,
        }
    )
    assert told.seconds == pytest.approx(sum(phase.seconds for phase in told.phases))
    assert (told.step_before, told.resumed_from, told.steps_lost) == (17, 10, 7)
    assert told.opened_wall == pytest.approx(WALL + 111.25)
    assert told.spares_used == 0
    assert [(victim.rank, victim.killed_by_us) for victim in told.casualties] == [(1, False), (0, True)]
    shown = "\n".join(text(told))
    assert "recovered in 1.88 s" in shown
    assert "7 steps (was at 17, resumed from 10)" in shown
    assert "  step 17" in shown
    assert "detect 250 ms" in shown


def test_the_traceback_comes_last():
    story = Story().muster().wait(1.0).raise_in(0)
    story.lose(0, signal=9).lose(1)
    told = _told(story, tails={"0": ["almost"]})
    assert told.outcome == "failed"
    assert told.exception == "ValueError: boom"
    lines = text(told)
    assert lines[-1] == "ValueError: boom"
    assert lines.index("last lines of rank 0:") < lines.index("traceback of rank 0:")
    assert any("it failed before its first step" in line for line in lines)
    assert not any(line.startswith("lost") for line in lines)


def test_an_incident_that_is_still_open_claims_nothing():
    story = Story().muster().first_steps(0).wait(1.0).lose(1)
    told = _told(story)
    assert told.verdict is None
    assert told.seconds is None
    assert told.where.rank == 1
    shown = "\n".join(text(told))
    assert "still open" in shown
    assert "not judged yet" in shown
    assert "steps: unknown" in shown


def test_unknown_marks_are_unknown_and_the_rest_adds_up():
    story = Story().muster().first_steps(0).wait(1.0).lose(1).lose(0).wait(1.0).muster().wait(2.0).first_steps(None)
    told = _told(story)
    seconds = {phase.name: phase.seconds for phase in told.phases}
    assert seconds["regroup"] is None
    assert seconds["restore"] is None
    assert seconds["first step"] == 2.0
    assert told.steps_lost is None


def test_two_attempts_show_both_and_blame_the_first_cause():
    story = Story().muster().first_steps(0).wait(1.0).lose(1).lose(0).muster().wait(1.0).lose(0, signal=11).lose(1)
    told = _told(story)
    assert told.attempts == 2
    assert (told.where.rank, told.where.incarnation) == (1, 1)
    assert {(victim.rank, victim.incarnation) for victim in told.casualties} == {(0, 1), (1, 1), (0, 2), (1, 2)}


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "unknown"), (0.0, "0 ms"), (0.0314, "31 ms"), (1.5, "1.50 s"), (125, "2 min 05 s"), (7260, "2 h 01 min")],
)
def test_durations(seconds, shown):
    assert duration(seconds) == shown
