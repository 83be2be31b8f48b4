"""What can go wrong with a command, as exceptions that say what, where, why and what to do next.

    HoldfastError          status 1
    ├── UsageError         status 2   the command cannot mean anything, or not on this machine
    │   └── Unsupported    status 2   it means something that Holdfast does not do yet
    ├── NotFound           status 5   no such job, incident or record
    └── Refused            status 5   a drill that the job or the machine does not allow (adapters.injection)

`code` is stable: documentation, JSON output and tests refer to it. Failures of a job are not in this tree: they are
verdicts, and the exit codes of `holdfast run` come from there.
"""

from __future__ import annotations

from typing import ClassVar


class HoldfastError(Exception):
    """One thing that the user must be told, and the exit status that goes with it."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 1

    def __init__(self, what: str, *, where: str = "", why: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.why = why
        self.remedy = remedy

    def __str__(self) -> str:
        """Several lines at most: what and where, then why, then what to do."""
        first = f"{self.where}: {self.what}" if self.where else self.what
        return "\n".join([first, *(f"  {line}" for line in (self.why, self.remedy) if line)])

    def document(self) -> dict[str, str | int]:
        """The same as data, for --json."""
        return {
            "code": self.code,
            "status": self.status,
            "what": self.what,
            "where": self.where,
            "why": self.why,
            "remedy": self.remedy,
        }


class UsageError(HoldfastError):
    code = "usage"
    status = 2


class Unsupported(UsageError):  # noqa: N818 - a statement about a request, read as one
    code = "unsupported"


class NotFound(HoldfastError):  # noqa: N818
    code = "not_found"
    status = 5
