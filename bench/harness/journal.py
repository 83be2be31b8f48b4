"""What Holdfast itself recorded of each kill. Its journal's times are those of the same clock as ours."""

from __future__ import annotations

from pathlib import Path

from harness.launchers import Job


def annotate(job: Job, kills: list[dict]) -> None:
    """Add to each kill when the agent knew of it, when it opened the incident, and which rung it took.

    An incident belongs to the last kill before it. What cannot be read is left out, and counts as not measured.
    """
    from holdfast.adapters.sqlite_journal import UnreadableError, read_head

    for path in Path(job.home).glob("jobs/*/journal.db"):
        try:
            incidents = read_head(path).state.incidents.values()
        except UnreadableError:
            continue
        for incident in incidents:
            _note(incident, kills)


def _note(incident, kills: list[dict]) -> None:
    earlier = [kill for kill in kills if kill.get("at_ns") and kill["at_ns"] / 1e9 <= incident.opened_at]
    if not earlier:
        return
    kill = max(earlier, key=lambda kill: kill["at_ns"])
    killed_at = kill["at_ns"] / 1e9
    kill["opened_ms"] = (incident.opened_at - killed_at) * 1e3
    if incident.casualties:
        kill["seen_ms"] = (incident.casualties[0].at - killed_at) * 1e3
        kill["sign"] = incident.casualties[0].sign
    if incident.remedy:
        kill["rung"] = {name: getattr(incident.remedy, name) for name in ("spares", "forks", "colds")}
    kill["phases_ms"] = {
        name: (at - killed_at) * 1e3
        for name in ("released_at", "decided_at", "assigned_at", "regrouped_at", "restored_at", "recovered_at")
        if (at := getattr(incident, name)) is not None
    }
    kill["steps_lost"] = incident.steps_lost
