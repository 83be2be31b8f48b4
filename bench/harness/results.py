"""The results file: what was measured, session by session, so that a run that was interrupted goes on where it was.

A session counts as measured only for the code, the machine and the parameters that it was measured with.
"""

from __future__ import annotations

import json
import os
from typing import Any

VERSION = 1


class Results:
    """One JSON file, replaced as a whole after every session."""

    def __init__(self, path: str, machine: dict, code: dict) -> None:
        self._path = path
        self._key = _key(machine, code)
        self.data: dict[str, Any] = {"version": VERSION, "machine": machine, "code": code, "rows": {}}
        if os.path.exists(path):
            kept = load(path)
            if kept.get("version") == VERSION:
                self.data["rows"] = kept["rows"]

    def begin(self, row: str, parameters: dict) -> None:
        """Drop what was measured under other circumstances."""
        circumstances = {"key": self._key, "parameters": parameters}
        kept = self.data["rows"].get(row)
        if kept is None or {name: kept.get(name) for name in circumstances} != circumstances:
            self.data["rows"][row] = {**circumstances, "sessions": {}}

    def forget(self, row: str) -> None:
        self.data["rows"].pop(row, None)

    def has(self, row: str, session: int) -> bool:
        return str(session) in self.data["rows"].get(row, {}).get("sessions", {})

    def keep(self, row: str, session: int, measured: dict) -> None:
        self.data["rows"][row]["sessions"][str(session)] = measured
        self.save()

    def save(self) -> None:
        os.makedirs(os.path.dirname(self._path) or ".", exist_ok=True)
        with open(self._path + ".tmp", "w") as file:
            json.dump(self.data, file, indent=1, sort_keys=True)
            file.write("\n")
        os.replace(self._path + ".tmp", self._path)


def current(data: dict[str, Any]) -> dict[str, Any]:
    """The data without rows of another commit or machine, which must not be shown beside the last run's."""
    key = _key(data["machine"], data["code"])
    return {**data, "rows": {name: row for name, row in data["rows"].items() if row["key"] == key}}


def _key(machine: dict, code: dict) -> str:
    return f"{machine['id']}:{code['commit']}:{code['digest']}"


def load(path: str) -> dict[str, Any]:
    with open(path) as file:
        return json.load(file)
