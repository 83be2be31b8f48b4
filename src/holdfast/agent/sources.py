"""Has the script changed since the last incarnation started? Said in the incident, because it explains so much."""

from __future__ import annotations

import hashlib
import os

_LIMIT_BYTES = 4 * 2**20
_LIMIT_FILES = 2000

Fingerprint = tuple[int, int, str]  # size, mtime in ns, digest


class Sources:
    def __init__(self) -> None:
        self._files: dict[str, Fingerprint | None] = {}

    def watch(self, paths: list[str]) -> None:
        for path in paths[:_LIMIT_FILES]:
            if path not in self._files:
                self._files[path] = _fingerprint(path, None)

    def changed(self) -> tuple[str, ...]:
        """Files whose content differs from the last look; the new content becomes what later looks compare with."""
        changed = []
        for path, before in self._files.items():
            now = _fingerprint(path, before)
            if (now is None) != (before is None) or (now is not None and before is not None and now[2] != before[2]):
                changed.append(path)
            self._files[path] = now
        return tuple(changed)


def _fingerprint(path: str, before: Fingerprint | None) -> Fingerprint | None:
    try:
        status = os.stat(path)
        if before is not None and before[:2] == (status.st_size, status.st_mtime_ns):
            return before
        with open(path, "rb") as file:
            digest = hashlib.sha256(file.read(_LIMIT_BYTES)).hexdigest()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, digest
