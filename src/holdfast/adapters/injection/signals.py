"""Faults that are one signal."""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Sequence

from holdfast.adapters.injection.refusal import Gone, Refused
from holdfast.adapters.injection.victims import Victim, held

FAULTS = {
    "kill": signal.SIGKILL,
    "stop": signal.SIGSTOP,
    "cont": signal.SIGCONT,
    "segv": signal.SIGSEGV,
    "term": signal.SIGTERM,
}


def send(chosen: Sequence[Victim], number: signal.Signals) -> int:
    """Signal all of them, as close together as can be. The moment before the first, in nanoseconds of CLOCK_MONOTONIC.

    Raises `Gone`, and signals nobody, when one of them is not there any more.
    """
    with held(chosen) as handles:
        at = time.monotonic_ns()
        for handle, victim in zip(handles, chosen, strict=True):
            try:
                signal.pidfd_send_signal(handle, number)
            except ProcessLookupError:
                if len(chosen) == 1:
                    raise Gone(victim.name) from None
            except PermissionError:
                raise Refused(f"{victim.name} (pid {victim.pid}) belongs to another user") from None
        return at


def ended(handle: int, seconds: float) -> bool:
    """Has the process behind a pidfd ended within this time?"""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
