"""How Holdfast speaks: on stderr, a line at a time, or as NDJSON when asked."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable

from holdfast.model.actions import Level

_COLOURS = {Level.INFO: "2", Level.WARNING: "33", Level.ERROR: "31"}


class Voice:
    def __init__(self, write: Callable[[str], None], *, as_json: bool) -> None:
        self._write = write
        self._as_json = as_json
        self._colour = os.isatty(2) and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        self._said: set[str] = set()

    def say(self, level: Level, text: str) -> None:
        if self._as_json:
            self._write(json.dumps({"at": time.time(), "level": level.value, "text": text}))
            return
        for number, line in enumerate(text.splitlines()):
            head = "holdfast: " if number == 0 else "  "
            self._write(f"\x1b[{_COLOURS[level]}m{head}{line}\x1b[0m" if self._colour else head + line)

    def once(self, level: Level, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self.say(level, text)

    def document(self, content: dict[str, object]) -> None:
        """The closing document of --json."""
        if self._as_json:
            self._write(json.dumps(content))
