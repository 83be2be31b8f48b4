"""What a set of casualties means."""

from typing import NamedTuple

import pytest

from holdfast.core import verdicts
from holdfast.model.exits import Casualty, Exit, Raised
from holdfast.model.spec import Terms
from holdfast.model.state import Blame, Budget, JobState, Store, Verdict

ERROR = Raised(type="ValueError", message="no such file\nand more", traceback="Traceback")
LATER = Raised(type="DistBackendError", message="connection closed by peer", traceback="Traceback")


def fell(rank, **known):
    return Casualty(**({"id": f"p{rank}", "rank": rank, "incarnation": 1, "at": 10.0, "pid": 100 + rank} | known))


def state(shell_codes=False, **known):
    return JobState(**({"terms": Terms(world=4, shell_codes=shell_codes), "incarnation": 1} | known))


class Case(NamedTuple):
    name: str
    casualties: tuple
    symptom: str
    blame: Blame
    suspect: int
    says: str
    state: JobState = state()


LOST = state(store=Store(incarnation=2, lost_in=1, lost_at=9.0))
LOST_LATER = state(store=Store(incarnation=2, lost_in=1, lost_at=11.0))
LOST_BEFORE = state(incarnation=2, store=Store(incarnation=2, lost_in=1, lost_at=9.0))

CASES = [
    Case("a signal", (fell(1, exit=Exit(signal=9)),), "crash", Blame.INFRASTRUCTURE, 1, "was killed by SIGKILL"),
    Case("a signal without a name", (fell(1, exit=Exit(signal=60)),), "crash", Blame.INFRASTRUCTURE, 1, "signal 60"),
    Case(
        "memory ran out",
        (fell(1, exit=Exit(signal=9), evidence=("kernel: out of memory, killed 101",)),),
        "crash",
        Blame.INFRASTRUCTURE,
        1,
        "because memory ran out",
    ),
    Case("an exit code", (fell(0, exit=Exit(code=3)),), "exit", Blame.USER, 0, "exited with code 3"),
    Case(
        "an exit code of a shell",
        (fell(0, exit=Exit(code=137)),),
        "crash",
        Blame.INFRASTRUCTURE,
        0,
        "was killed by SIGKILL",
        state(shell_codes=True),
    ),
    Case("the same code of a script", (fell(0, exit=Exit(code=137)),), "exit", Blame.USER, 0, "exited with code 137"),
    Case(
        "an exception",
        (fell(2, raised=ERROR, exit=Exit(code=1)),),
        "exception",
        Blame.USER,
        2,
        "rank 2 raised ValueError: no such file",
    ),
    Case(
        "an exception without a message",
        (fell(2, raised=Raised(type="KeyError", message="", traceback="")),),
        "exception",
        Blame.USER,
        2,
        "rank 2 raised KeyError",
    ),
    Case(
        "a signal outranks the exceptions that come of it, even those told before it",
        (fell(0, raised=LATER, exit=Exit(code=1)), fell(1, exit=Exit(signal=9))),
        "crash",
        Blame.INFRASTRUCTURE,
        1,
        "rank 1 was killed",
    ),
    Case(
        "but not if the signal was ours",
        (fell(0, raised=ERROR, exit=Exit(code=1)), fell(1, exit=Exit(signal=9), killed_by_us=True)),
        "exception",
        Blame.USER,
        0,
        "rank 0 raised",
    ),
    Case(
        "the first of several exceptions is the cause",
        (fell(3, raised=ERROR), fell(0, raised=LATER)),
        "exception",
        Blame.USER,
        3,
        "rank 3 raised ValueError",
    ),
    Case(
        "an exception after the store was lost",
        (fell(0, raised=LATER),),
        "store lost",
        Blame.INFRASTRUCTURE,
        0,
        "after its store was lost",
        LOST,
    ),
    Case("an exception before that", (fell(0, raised=LATER),), "exception", Blame.USER, 0, "raised", LOST_LATER),
    Case(
        "an exception in the incarnation after that",
        (fell(0, raised=LATER),),
        "exception",
        Blame.USER,
        0,
        "raised",
        LOST_BEFORE,
    ),
    Case(
        "stopped from outside",
        (fell(0, sign="stop", exit=Exit(signal=9)),),
        "stopped",
        Blame.INFRASTRUCTURE,
        0,
        "was stopped by a signal from outside",
    ),
    Case("no start", (fell(0, sign="start"),), "no start", Blame.INFRASTRUCTURE, 0, "could not be started"),
    Case("nobody saw how", (fell(0, exit=Exit()),), "crash", Blame.INFRASTRUCTURE, 0, "nobody saw how"),
    Case(
        "all by our hand: still somebody",
        (fell(1, exit=Exit(signal=9), killed_by_us=True),),
        "crash",
        Blame.INFRASTRUCTURE,
        1,
        "was killed by SIGKILL",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_verdict(case):
    verdict = verdicts.judge(case.state, case.casualties)
    assert (verdict.symptom, verdict.blame, verdict.suspect) == (case.symptom, case.blame, case.suspect)
    assert case.says in verdict.sentence


def test_evidence_names_the_cause_first_and_leaves_out_our_own_victims():
    verdict = verdicts.judge(
        state(),
        (
            fell(0, raised=LATER, exit=Exit(code=1)),
            fell(1, exit=Exit(signal=9), sign="mutex", evidence=("kernel says so",)),
            fell(2, exit=Exit(signal=9), killed_by_us=True),
        ),
    )
    assert verdict.evidence == (
        "kernel says so",
        "rank 1 (pid 101) lost, first seen by mutex, ended by SIGKILL",
        "rank 0 (pid 100) lost, exit code 1, raised DistBackendError",
    )


def test_confidence_is_low_where_nothing_is_known():
    assert verdicts.judge(state(), (fell(0, sign="start"),)).confidence == "low"
    assert verdicts.judge(state(), (fell(0, exit=Exit(signal=9)),)).confidence == "high"


def verdict(blame, signature="x"):
    return Verdict("any", blame, 0, "high", "rank 0 did it", signature=signature)


FINALITIES = [
    ("the policy may be to stop", state(terms=Terms(world=1, policy="stop")), Blame.INFRASTRUCTURE, "policy"),
    ("a broken node is final", state(), Blame.NODE, "node"),
    ("infrastructure is worth another try", state(), Blame.INFRASTRUCTURE, None),
    ("an error before the first step comes again", state(), Blame.USER, "before its first step"),
    ("an error after steps may not", state(stepped_ever=True), Blame.USER, None),
    ("nor one in a later incarnation", state(incarnation=2), Blame.USER, None),
    (
        "but the same error twice without progress does",
        state(incarnation=2, best_step=5, budget=Budget(last_signature="x", last_best=5)),
        Blame.USER,
        "twice without progress",
    ),
    (
        "with progress in between it is another matter",
        state(incarnation=2, best_step=6, budget=Budget(last_signature="x", last_best=5)),
        Blame.USER,
        None,
    ),
    (
        "and so is another error",
        state(incarnation=2, best_step=5, budget=Budget(last_signature="y", last_best=5)),
        Blame.USER,
        None,
    ),
]


@pytest.mark.parametrize(("name", "given", "blame", "why"), FINALITIES, ids=[case[0] for case in FINALITIES])
def test_finality(name, given, blame, why):
    found = verdicts.finality(given, verdict(blame))
    assert found is None if why is None else why in found
