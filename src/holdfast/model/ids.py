"""Names of things, as types, so that one cannot be passed for another."""

from typing import NewType

JobId = NewType("JobId", str)
ProcessId = NewType("ProcessId", str)
Rank = NewType("Rank", int)
Incarnation = NewType("Incarnation", int)
Step = NewType("Step", int)
Seconds = NewType("Seconds", float)
