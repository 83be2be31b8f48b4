"""A shell that starts the tests in the background has told them to ignore Ctrl-C; those that send it must be heard."""

from __future__ import annotations

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
