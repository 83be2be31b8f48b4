"""What is kept of a job while it runs: journal, output, incidents. None of it may ever stop the job."""

from __future__ import annotations

import os
import socket
import tempfile
import time

import msgspec

from holdfast.adapters.home import JobFolder
from holdfast.adapters.joblogs import LogWriter
from holdfast.agent import evidence
from holdfast.model.exits import Casualty
from holdfast.model.ids import Incarnation
from holdfast.model.state import Incident
from holdfast.ports.health import Health
from holdfast.ports.journal import Journal

_TAIL_LINES = 20


class Records:
    def __init__(self, folder: JobFolder, journal: Journal, logs: LogWriter, log_dir: str | None, run_id: str) -> None:
        self.folder = folder
        self.journal = journal
        self._logs = logs
        self._log_dir = log_dir
        self._run_id = run_id
        self._run_folder: str | None = None
        self._problems: list[str] = []

    def keep_output(self, rank: int, incarnation: int, stream: str, data: bytes) -> None:
        self._logs.write(rank, incarnation, stream, time.time_ns(), data)

    def behind(self) -> bool:
        """Is so much waiting to be written that workers should wait before they print more?"""
        return self._logs.full

    def attempt_folder(self, incarnation: Incarnation, world: int) -> str | None:
        """torchrun's folder of one attempt, with one for each rank: under --log-dir, or under the job's own folder."""
        try:
            if self._run_folder is None:
                base = self._log_dir or str(self.folder.path / "torchrun")
                os.makedirs(base, exist_ok=True)
                self._run_folder = tempfile.mkdtemp(prefix=f"{self._run_id}_".replace("/", "_"), dir=base)
            attempt = os.path.join(self._run_folder, f"attempt_{incarnation - 1}")
            for rank in range(world):
                os.makedirs(os.path.join(attempt, str(rank)), exist_ok=True)
        except OSError as error:
            self._problems.append(f"no folder for error files: {error.strerror}")
            return None
        return attempt

    def problems(self) -> list[str]:
        """What cannot be kept at the moment, in words."""
        found = [*self._problems, *(self.journal.health() + self._logs.health()).notes]
        self._problems.clear()
        return found

    def keep_incident(self, incident: Incident) -> None:
        """Gather what was too slow to gather while the job was being recovered. Runs in a thread."""
        tails = {c.rank: self._logs.tail(c.rank, _TAIL_LINES, c.incarnation) for c in incident.casualties}
        health = self.folder.write_incident(
            incident.number,
            {
                "host": socket.gethostname(),
                "closed_wall": time.time(),
                "tails": {str(rank): lines for rank, lines in tails.items()},
                "kernel": self._kernel_lines(incident.casualties),
                "incident": msgspec.to_builtins(incident),
            },
        )
        self._note(health)

    def _kernel_lines(self, casualties: tuple[Casualty, ...]) -> list[str]:
        if not any(c.exit is not None and c.exit.signal is not None for c in casualties):
            return []
        log = evidence.kernel_log()
        lines = (evidence.kernel_oom_line(log, c.pid) for c in casualties if c.pid is not None)
        return [line for line in lines if line]

    def _note(self, health: Health) -> None:
        self._problems.extend(health.notes)

    def close(self) -> None:
        self.journal.close()
        self._logs.close()
        self.folder.release()
