"""`kill -9` of one rank, again and again, and how long until all ranks have completed a step.

The clock starts immediately before the signal is sent and stops at the latest of the ranks' first completed steps in
the incarnation that follows. Which rank, and when within its step, is drawn from a seed. A launcher that has not
brought the job back in time, or has given up, has failed that kill and is started anew for the next one.
"""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass

from harness import journal
from harness.launchers import Job, Launcher, job

START_CAP_SECONDS = 120.0
CALM_CAP_SECONDS = 30.0
STEP_SECONDS = 0.06


@dataclass(frozen=True)
class Plan:
    """How a series of kills is made."""

    kills: int
    cap_seconds: float = 30.0
    first_after_seconds: float = 2.0  # of training, before the first kill
    calm_steps: int = 10  # since the last recovery, before the next kill
    calm_seconds: float = 1.0
    one_each: bool = False  # a new launch for every kill: each is a first failure
    enough_failures: int = 5  # a setting that never recovers is not asked any further


def series(launcher: Launcher, world: int, plan: Plan, seed: str, arguments: tuple[str, ...] = ()) -> dict:
    """The kills of one session, over as many launches as they need."""
    dice = random.Random(seed)
    kills: list[dict] = []
    launches = 0
    while len(kills) < plan.kills and sum(not kill["seconds"] for kill in kills) < plan.enough_failures:
        launches += 1
        with job(launcher, world, arguments) as running:
            wanted = 1 if plan.one_each else plan.kills - len(kills)
            made = _until_failure(running, wanted, plan, dice)
            if not all(kill["seconds"] for kill in made):
                made[-1]["output"] = running.output_tail()
            running.end()
            if launcher.name.startswith("holdfast"):
                journal.annotate(running, made)
            kills += made
    return {"kills": kills, "launches": launches}


def _until_failure(running: Job, wanted: int, plan: Plan, dice: random.Random) -> list[dict]:
    traces = running.traces
    if not running.wait_for(lambda: traces.whole_at(0) is not None, START_CAP_SECONDS):
        return [_failed(0, True, "it did not start")]
    time.sleep(plan.first_after_seconds)
    kills: list[dict] = []
    restarts = 0
    while len(kills) < wanted:
        first = not kills
        rank = dice.randrange(running.world)
        phase = dice.random() * STEP_SECONDS
        calm = restarts

        def is_calm(calm: int = calm) -> bool:
            return traces.steps(calm) >= plan.calm_steps and traces.newest() == calm

        if not running.wait_for(is_calm, CALM_CAP_SECONDS):
            kills.append(_failed(rank, first, "it stopped making steps, or restarted, without a kill"))
            return kills
        time.sleep(phase)
        running.running()
        victim = traces.life(rank, restarts)
        assert victim is not None
        killed_ns = time.monotonic_ns()
        try:
            os.kill(victim.pid, signal.SIGKILL)
        except ProcessLookupError:
            kills.append(_failed(rank, first, "the worker was gone before it was killed"))
            return kills
        after = restarts
        if not running.wait_for(lambda after=after: traces.recovered(after) is not None, plan.cap_seconds):
            code = running.process.poll()
            why = f"not back after {plan.cap_seconds:.0f} s" if code is None else f"the launcher left with {code}"
            kills.append({**_failed(rank, first, why), "at_ns": killed_ns})
            return kills
        restarts, whole_ns = traces.recovered(after) or (after, 0)
        kills.append(
            {
                "rank": rank,
                "first": first,
                "seconds": (whole_ns - killed_ns) / 1e9,
                "incarnations": restarts - after,
                "at_ns": killed_ns,
            }
        )
        time.sleep(plan.calm_seconds)
    return kills


def _failed(rank: int, first: bool, why: str) -> dict:
    return {"rank": rank, "first": first, "seconds": None, "why": why}
