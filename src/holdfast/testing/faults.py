"""What can go wrong on a simulated machine. Each fault looks for somebody to hit and says whether it found one.

The names are those of `schedules.KINDS`. A fault only does what a real machine could do; what the core is told of it
follows from the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.core.verdicts import signal_of
from holdfast.model import events
from holdfast.model.exits import Exit
from holdfast.model.state import Origin
from holdfast.testing.machine import Body, Life, Machine

if TYPE_CHECKING:
    from holdfast.testing.world import World

SIGKILL = 9
# Not the store's answers: they do not say which keeper gave them, so a shell must not repeat or delay them.
REPEATABLE = (
    events.ProcessWarm,
    events.ProcessStillborn,
    events.ProcessLost,
    events.ProcessGone,
    events.WorkerRaised,
    events.WorkerEnded,
    events.WorkerStepped,
    events.Progressed,
    events.Learned,
)

Inject = Callable[["World", float], bool]


def _working(machine: Machine) -> list[Body]:
    return [body for body in machine.alive.values() if body.life is Life.EXECUTING]


def _idle(machine: Machine) -> list[Body]:
    return [body for body in machine.alive.values() if body.life is Life.WARM and not body.keeps]


def _keepers(machine: Machine) -> list[Body]:
    return [body for body in machine.alive.values() if body.keeps]


def _one(bodies: list[Body], pick: float) -> Body | None:
    return bodies[int(pick * len(bodies))] if bodies else None


def _blame(body: Body, cause: str) -> None:
    if body.training is not None and not body.killed:
        body.training.causes.append(cause)


def _strike(machine: Machine, body: Body) -> None:
    _blame(body, "signal")
    machine.die(body, Exit(signal=SIGKILL))


def _on(found: Callable[[Machine], list[Body]], hit: Callable[[Machine, Body], None]) -> Inject:
    """A fault that happens to one of the processes found."""

    def inject(world: World, pick: float) -> bool:
        body = _one(found(world.machine), pick)
        if body is None:
            return False
        hit(world.machine, body)
        return True

    return inject


def _kill_some(share: float) -> Inject:
    def inject(world: World, pick: float) -> bool:
        working = _working(world.machine)
        first = int(pick * len(working))
        count = max(2, round(share * len(working)))
        struck = (working[first:] + working[:first])[:count] if len(working) > 1 else []
        for body in struck:
            _strike(world.machine, body)
        return bool(struck)

    return inject


def _raise_once(machine: Machine, body: Body) -> None:
    _blame(body, "error")
    machine.throw(body, "RuntimeError", f"rank {body.rank} at {machine.clock.now:.3f}")


def _raise_always(world: World, pick: float) -> bool:
    """From here on the script has a bug: it fails at the same step for ever."""
    machine = world.machine
    if machine.bug_at is not None:
        return False
    machine.bug_at = max(1, int(pick * machine.script.steps))
    return True


def _exit_code(world: World, pick: float) -> bool:
    body = _one(_working(world.machine), pick)
    if body is None:
        return False
    exit = Exit(code=(1, 3, 137)[int(pick * 300) % 3])
    is_signal = signal_of(exit, shell_codes=world.schedule.terms.shell_codes) is not None
    _blame(body, "signal" if is_signal else "error")
    world.machine.die(body, exit)
    return True


def _exit_zero(machine: Machine, body: Body) -> None:
    _blame(body, "error")
    machine.die(body, Exit(code=0))


def _pause(machine: Machine, body: Body) -> None:
    if not body.stopped:
        machine.stop(body)
        machine.after(0.01, 9.0, partial(machine.resume, body))


def _freeze(machine: Machine, body: Body) -> None:
    if not body.stopped:
        _blame(body, "stop")
        machine.stop(body)


def _hide_and_kill(machine: Machine, body: Body) -> None:
    body.hidden = True
    _strike(machine, body)


def _mark(trait: str) -> Callable[[Machine, Body], None]:
    return lambda _machine, body: setattr(body, trait, True)


def _slow_death(machine: Machine, body: Body) -> None:
    body.death_seconds = machine.rng.uniform(0.5, 25.0)


def _slow_release(machine: Machine, body: Body) -> None:
    body.release_seconds = machine.rng.uniform(0.5, 40.0)


def _kill(machine: Machine, body: Body) -> None:
    machine.die(body, Exit(signal=SIGKILL))


def _freeze_idle(machine: Machine, body: Body) -> None:
    machine.stop(body)


def _lose_nursery(reason: str) -> Inject:
    return lambda world, _pick: world.machine.lose_nursery(reason)


def _nursery_trouble(kind: str) -> Inject:
    """Also the nursery of now goes, so that there is a next one to have it."""

    def inject(world: World, pick: float) -> bool:
        world.machine.nursery_troubles.extend([kind] * (1 + int(pick * 3)))
        return world.machine.lose_nursery("exit code 1")

    return inject


def _birth_trouble(kind: str) -> Inject:
    def inject(world: World, pick: float) -> bool:
        world.machine.birth_troubles.extend([kind] * (1 + int(pick * 3)))
        return True

    return inject


def _broken(*origins: Origin) -> Inject:
    def inject(world: World, _pick: float) -> bool:
        world.machine.broken_origins = origins
        return True

    return inject


def _warm_always_dies(world: World, _pick: float) -> bool:
    world.machine.warm_dies = True
    return True


def _store_trouble(kind: str) -> Inject:
    def inject(world: World, pick: float) -> bool:
        world.machine.store_troubles.extend([kind] * (1 + int(pick * 2)))
        return True

    return inject


def _old_news(world: World, pick: float) -> bool:
    """Something that was reported before is reported again."""
    known = [event for event in world.delivered if isinstance(event, REPEATABLE)]
    if not known:
        return False
    event = known[int(pick * len(known))]
    world.report(0.0, lambda at: replace(event, at=at))
    return True


def _sources_change(world: World, _pick: float) -> bool:
    world.report(0.0, lambda at: events.SourcesChanged(at=at, files=("train.py",)))
    return True


def _stop(times: int) -> Inject:
    def inject(world: World, pick: float) -> bool:
        number = 2 if pick < 0.5 else 15
        for _ in range(times):
            world.report(world.machine.rng.uniform(0.0, 2.0), lambda at: events.StopAsked(at=at, signal=number))
        return True

    return inject


FAULTS: dict[str, Inject] = {
    "kill_worker": _on(_working, _strike),
    "kill_several": _kill_some(0.5),
    "kill_all": _kill_some(1.0),
    "raise_once": _on(_working, _raise_once),
    "raise_always": _raise_always,
    "exit_code": _exit_code,
    "exit_zero": _on(_working, _exit_zero),
    "pause_worker": _on(_working, _pause),
    "freeze_worker": _on(_working, _freeze),
    "hide_worker": _on(_working, _mark("hidden")),
    "kill_hidden": _on(_working, _hide_and_kill),
    "make_unkillable": _on(_working, _mark("unkillable")),
    "make_deaf": _on(_working, _mark("deaf")),
    "slow_to_die": _on(_working, _slow_death),
    "slow_to_release": _on(_working, _slow_release),
    "hang_at_exit": _on(_working, _mark("exit_hangs")),
    "crash_at_exit": _on(_working, _mark("exit_crashes")),
    "kill_idle": _on(_idle, _kill),
    "freeze_idle": _on(_idle, _freeze_idle),
    "kill_nursery": _lose_nursery("signal 9"),
    "nursery_unfit": _lose_nursery("it runs threads"),
    "nursery_hangs": _nursery_trouble("hang"),
    "nursery_dies_young": _nursery_trouble("die"),
    "nursery_slow": _nursery_trouble("slow"),
    "kill_keeper": _on(_keepers, _kill),
    "freeze_keeper": _on(_keepers, _freeze_idle),
    "birth_fails": _birth_trouble("fail"),
    "birth_hangs": _birth_trouble("hang"),
    "birth_dies": _birth_trouble("die"),
    "warm_dies": _birth_trouble("warm_dies"),
    "forks_broken": _broken(Origin.FORK),
    "everything_broken": _broken(Origin.FORK, Origin.COLD),
    "warm_always_dies": _warm_always_dies,
    "store_fails": _store_trouble("fail"),
    "store_hangs": _store_trouble("hang"),
    "store_late": _store_trouble("late"),
    "old_news": _old_news,
    "sources_change": _sources_change,
    "stop": _stop(1),
    "stop_twice": _stop(2),
}
