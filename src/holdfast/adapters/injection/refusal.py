"""Why a fault was not made."""

from __future__ import annotations

from holdfast.model.errors import HoldfastError


class Refused(HoldfastError):  # noqa: N818 - a statement about a request, read as one
    """The job does not allow it, or this machine does not."""

    code = "refused"
    status = 5


class Gone(Exception):  # noqa: N818 - no error: processes of a job come and go
    """The process has ended, or its number now belongs to somebody else's."""
