"""Process titles: job, role and rank where `ps` and `pkill -f` look.

The title takes the place of the command line only. By default it would grow into the memory of the environment, which
must stay readable: what carries the job's id there is ended with the job.
"""

from __future__ import annotations

import os

ROOM = " " * 400  # a last argument for processes of ours, to make room for the title

_KEEP_ENVIRONMENT = "SPT_NOENV"


def set_title(title: str) -> None:
    """Set it if the library is there; a process is not worse for having none."""
    try:
        from setproctitle import setproctitle
    except ImportError:
        return
    before = os.environ.get(_KEEP_ENVIRONMENT)
    os.environ[_KEEP_ENVIRONMENT] = "1"  # read at the first call
    try:
        setproctitle(title.encode("utf-8", "replace").decode())  # a file name need not be text
    finally:
        if before is None:
            del os.environ[_KEEP_ENVIRONMENT]
