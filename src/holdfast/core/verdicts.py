"""What a set of casualties means: whose failure it is, who comes first, and whether trying again makes sense.

A death by signal is infrastructure, an exception or a non-zero exit is the user's. Among several, the first cause
counts: a signal that nobody here sent outranks the exceptions that follow from it, however they arrive.
"""

from __future__ import annotations

import signal as signals

from holdfast.model.exits import SHELL_SIGNALS, Casualty, Exit
from holdfast.model.state import Blame, Budget, JobState, Verdict


def signal_of(exit: Exit, *, shell_codes: bool) -> int | None:
    """The signal a process died of; from a shell or another program, its exit code may stand for one."""
    if exit.signal is not None:
        return exit.signal
    if shell_codes and exit.code is not None and exit.code in SHELL_SIGNALS:
        return exit.code - 128
    return None


def name_of(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def first_cause(casualties: tuple[Casualty, ...], *, shell_codes: bool) -> Casualty:
    """The casualty the others follow from."""
    foreign = [c for c in casualties if not c.killed_by_us] or list(casualties)
    killed = [c for c in foreign if c.exit is not None and signal_of(c.exit, shell_codes=shell_codes) is not None]
    return (killed or foreign)[0]


def judge(state: JobState, casualties: tuple[Casualty, ...]) -> Verdict:
    cause = first_cause(casualties, shell_codes=state.terms.shell_codes)
    number = signal_of(cause.exit, shell_codes=state.terms.shell_codes) if cause.exit is not None else None
    others = tuple(c for c in casualties if c is not cause and not c.killed_by_us)
    evidence = cause.evidence + tuple(_seen(c) for c in (cause, *others))
    if cause.sign == "stop":
        how = "was stopped by a signal from outside and not continued"
        return _verdict("stopped", Blame.INFRASTRUCTURE, cause, how, evidence, signature="stopped")
    if cause.sign == "start":
        return _verdict("no start", Blame.INFRASTRUCTURE, cause, "could not be started", evidence, signature="no start")
    if cause.raised is not None and number is None:
        last = cause.raised.message.splitlines()[0] if cause.raised.message else ""
        what = f"{cause.raised.type}: {last}" if last else cause.raised.type
        if state.store.lost_in == state.incarnation and state.store.lost_at <= cause.at:
            return _verdict(
                "store lost", Blame.INFRASTRUCTURE, cause, f"raised {what} after its store was lost", evidence
            )
        return _verdict("exception", Blame.USER, cause, f"raised {what}", evidence, signature=what)
    if number is not None:
        how = f"was killed by {name_of(number)}"
        if any("out of memory" in line for line in cause.evidence):
            how += " because memory ran out"
        return _verdict("crash", Blame.INFRASTRUCTURE, cause, how, evidence, signature=f"signal {number}")
    code = cause.exit.code if cause.exit is not None else None
    if code is None:
        return _verdict("crash", Blame.INFRASTRUCTURE, cause, "ended, and nobody saw how", evidence)
    return _verdict("exit", Blame.USER, cause, f"exited with code {code}", evidence, signature=f"exit {code}")


def finality(state: JobState, verdict: Verdict) -> str | None:
    """Why trying again would be pointless, if it would be."""
    if state.terms.policy == "stop":
        return "the policy is to stop at the first failure"
    if verdict.blame is Blame.NODE:
        return "this node cannot go on"
    if verdict.blame is not Blame.USER:
        return None
    if state.incarnation == 1 and not state.stepped_ever:
        return "it failed before its first step, as it would again"
    budget = state.budget
    if budget.last_signature == verdict.signature and not progressed(state, budget):
        return "it failed in the same way twice without progress in between"
    return None


def progressed(state: JobState, budget: Budget) -> bool:
    return state.best_step is not None and state.best_step > budget.last_best


def _verdict(
    symptom: str, blame: Blame, cause: Casualty, how: str, evidence: tuple[str, ...], signature: str = ""
) -> Verdict:
    sentence = f"rank {cause.rank} {how}"
    confidence = "high" if cause.exit is not None or cause.raised is not None else "low"
    return Verdict(symptom, blame, cause.rank, confidence, sentence, evidence, signature)


def _seen(casualty: Casualty) -> str:
    parts = [f"rank {casualty.rank} (pid {casualty.pid}) lost"]
    if casualty.sign:
        parts.append(f"first seen by {casualty.sign}")
    if casualty.exit is not None and casualty.exit.signal is not None:
        parts.append(f"ended by {name_of(casualty.exit.signal)}")
    elif casualty.exit is not None and casualty.exit.code is not None:
        parts.append(f"exit code {casualty.exit.code}")
    if casualty.raised is not None:
        parts.append(f"raised {casualty.raised.type}")
    return ", ".join(parts)
