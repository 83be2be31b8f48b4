"""How many restarts are left, and how long to wait before one.

A limit that the user gave is hard and global. Otherwise restarts are tokens that progress earns back, so a job that
moves on may be killed for ever and a crash loop ends soon. The wait is exponential and only for repeated failures:
the first costs nothing.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core.verdicts import progressed
from holdfast.model.ids import Step
from holdfast.model.state import Blame, Budget, JobState, Verdict

EXIT_USER = 1
EXIT_USAGE = 2
EXIT_INFRASTRUCTURE = 75
EXIT_NODE = 76


def opening(state: JobState) -> Budget:
    return Budget(tokens=state.terms.budget)


def refill(state: JobState) -> Budget:
    """The budget after the steps made since the last look."""
    budget, terms = state.budget, state.terms
    if state.best_step is None or terms.refill_steps <= 0:
        return budget
    earned = (state.best_step - budget.refilled_at) // terms.refill_steps
    if earned <= 0:
        return budget
    return replace(
        budget,
        tokens=min(terms.budget, budget.tokens + earned),
        refilled_at=Step(budget.refilled_at + earned * terms.refill_steps),
    )


def spent(state: JobState) -> str | None:
    """Why no restart is allowed any more, if none is."""
    limit = state.terms.max_restarts
    if limit is not None:
        return f"all {limit} restarts of --max-restarts are used" if state.budget.restarts >= limit else None
    return f"the budget of {state.terms.budget} restarts is spent" if state.budget.tokens <= 0 else None


def charge(state: JobState, verdict: Verdict) -> Budget:
    budget = state.budget
    repeats = 0 if progressed(state, budget) else budget.repeats + 1
    if not budget.restarts:
        repeats = 0
    return replace(
        budget,
        restarts=budget.restarts + 1,
        tokens=max(0, budget.tokens - 1),
        repeats=repeats,
        last_signature=verdict.signature,
        last_best=state.best_step if state.best_step is not None else budget.last_best,
    )


def rest_seconds(state: JobState, chance: float) -> float:
    """How long to wait before the restart that was just charged; jitter keeps many jobs from moving in step."""
    limits = state.terms.limits
    if state.budget.repeats == 0:
        return 0.0
    ceiling = limits.backoff_seconds * 2.0 ** min(state.budget.repeats - 1, 30)
    return min(ceiling, limits.backoff_cap_seconds) * (0.5 + chance / 2)


def exit_code(verdict: Verdict) -> int:
    return {Blame.USER: EXIT_USER, Blame.INFRASTRUCTURE: EXIT_INFRASTRUCTURE, Blame.NODE: EXIT_NODE}[verdict.blame]
