"""How many restarts are left, and how long to wait before one."""

import pytest

from holdfast.core import budgets
from holdfast.model.spec import Limits, Terms
from holdfast.model.state import Blame, Budget, JobState, Verdict

CRASH = Verdict("crash", Blame.INFRASTRUCTURE, 0, "high", "rank 0 was killed", signature="signal 9")


def state(best_step=None, terms=None, **budget):
    return JobState(terms=terms or Terms(world=1), best_step=best_step, budget=Budget(**budget))


def test_a_job_opens_with_the_budget_of_its_terms():
    assert budgets.opening(JobState(terms=Terms(world=1, budget=7))).tokens == 7


@pytest.mark.parametrize(
    ("best", "tokens", "refilled_at", "then_tokens", "then_refilled_at"),
    [
        (None, 3, 0, 3, 0),
        (9, 3, 0, 3, 0),
        (10, 3, 0, 4, 10),
        (39, 3, 10, 5, 30),
        (1000, 3, 0, 10, 1000),
        (5, 3, 10, 3, 10),
    ],
)
def test_progress_earns_restarts_back(best, tokens, refilled_at, then_tokens, then_refilled_at):
    budget = budgets.refill(state(best, tokens=tokens, refilled_at=refilled_at))
    assert (budget.tokens, budget.refilled_at) == (then_tokens, then_refilled_at)


def test_without_refilling_nothing_is_earned():
    assert budgets.refill(state(1000, Terms(world=1, refill_steps=0), tokens=3)).tokens == 3


def test_the_budget_is_spent_with_the_last_token():
    assert budgets.spent(state(tokens=1)) is None
    assert "budget of 10 restarts is spent" in budgets.spent(state(tokens=0))


def test_a_limit_of_the_users_is_all_that_counts():
    terms = Terms(world=1, max_restarts=20, budget=1)
    assert budgets.spent(state(terms=terms, restarts=19, tokens=0)) is None
    assert "--max-restarts" in budgets.spent(state(terms=terms, restarts=20, tokens=1))
    assert budgets.spent(state(terms=Terms(world=1, max_restarts=0), tokens=10)) is not None


def test_a_restart_is_charged_but_never_on_credit():
    budget = budgets.charge(state(5, tokens=1), CRASH)
    assert budget == Budget(restarts=1, tokens=0, last_signature="signal 9", last_best=5)
    assert budgets.charge(state(5, tokens=0), CRASH).tokens == 0


def test_failures_in_a_row_are_counted_until_there_is_progress():
    first = budgets.charge(state(5, tokens=9), CRASH)
    second = budgets.charge(JobState(best_step=5, budget=first), CRASH)
    third = budgets.charge(JobState(best_step=5, budget=second), CRASH)
    assert (first.repeats, second.repeats, third.repeats) == (0, 1, 2)
    assert budgets.charge(JobState(best_step=6, budget=third), CRASH).repeats == 0


@pytest.mark.parametrize(
    ("repeats", "chance", "seconds"),
    [(0, 0.9, 0.0), (1, 0.0, 0.25), (1, 1.0, 0.5), (2, 1.0, 1.0), (5, 0.0, 4.0), (8, 1.0, 60.0), (500, 0.0, 30.0)],
)
def test_the_first_failure_costs_no_rest_and_repeated_ones_ever_more(repeats, chance, seconds):
    limits = Limits(backoff_seconds=0.5, backoff_cap_seconds=60.0)
    assert budgets.rest_seconds(state(terms=Terms(world=1, limits=limits), repeats=repeats), chance) == seconds


@pytest.mark.parametrize(("blame", "code"), [(Blame.USER, 1), (Blame.INFRASTRUCTURE, 75), (Blame.NODE, 76)])
def test_exit_codes_say_whose_failure_it_was(blame, code):
    assert budgets.exit_code(Verdict("any", blame, 0, "high", "")) == code
