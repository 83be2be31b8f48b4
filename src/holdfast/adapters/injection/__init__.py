"""Faults, made from outside and through the operating system only. What a drill and the demo do to a running job.

    victims   who: processes of a job, found in its journal and confirmed by the kernel
    signals   kill, stop, segv, ...
    memory    the kernel's own out-of-memory killer, in a memory cgroup made for one process
    tracing   an exit that the program did not ask for, through ptrace

Nothing here talks to the agent, and nothing in the agent knows of it: a fault that was announced would prove nothing.
"""

from __future__ import annotations

from holdfast.adapters.injection.refusal import Gone, Refused
from holdfast.adapters.injection.victims import Kind, Victim

__all__ = ["Gone", "Kind", "Refused", "Victim"]
