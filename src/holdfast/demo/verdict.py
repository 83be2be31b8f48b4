"""What the two runs prove, computed from what they left: traces, results, journals. Nothing here is typed in.

A claim that cannot be checked, because a file is missing or a run did not end, has failed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.goodput import Goodput, account
from holdfast.core.record import Entry, Record
from holdfast.demo.inject import Made
from holdfast.demo.traces import Stepped, Trace
from holdfast.model.state import Incident, JobState

SIGKILL = 9
_SUM_SECONDS = 0.001
TRAINING_SAMPLES = 1500


class Facts(msgspec.Struct):
    """One run, once it is over."""

    exit_code: int | None
    seconds: float
    trace: Trace
    result: dict[str, Any] | None
    state: JobState | None
    entries: list[Entry]
    left_over: list[int]
    job_id: str = ""

    @property
    def goodput(self) -> Goodput | None:
        return account(self.entries) if self.entries else None


class Claim(msgspec.Struct, frozen=True):
    name: str
    holds: bool
    detail: str


class Seen(msgspec.Struct, frozen=True):
    """What Holdfast made of one fault."""

    right: bool
    as_what: str
    detect_seconds: float | None = None
    incident: int | None = None
    replaced_seconds: float | None = None  # a spare or the nursery


class Row(msgspec.Struct, frozen=True):
    """One fault of the plan, from both sides."""

    made: Made
    seen: Seen
    replayed_steps: int | None = None
    replays: int = 0  # rank-steps that were made twice
    replays_equal: int = 0

    @property
    def holds(self) -> bool:
        return self.made.back and self.seen.right and self.replays == self.replays_equal


class Verdict(msgspec.Struct, frozen=True):
    claims: list[Claim]
    rows: list[Row]

    @property
    def holds(self) -> bool:
        return all(claim.holds for claim in self.claims)


def judge(calm: Facts, hurt: Facts, made: Sequence[Made], steps: int) -> Verdict:
    rows = [_row(one, hurt) for one in made]
    claims = [
        _completed(calm, hurt, steps),
        _made(made),
        _seen(rows, hurt),
        _back(rows),
        _losses(calm, hurt, steps),
        _replays(hurt),
        _samples(calm, hurt, steps),
        _weights(calm, hurt),
        _accuracy(calm, hurt),
        _buckets(calm, hurt),
        _nothing_left(calm, hurt),
    ]
    return Verdict(claims, rows)


# -- the runs


def _completed(calm: Facts, hurt: Facts, steps: int) -> Claim:
    codes = [facts.exit_code for facts in (calm, hurt)]
    ends = [(facts.result or {}).get("step") for facts in (calm, hurt)]
    holds = codes == [0, 0] and ends == [steps, steps]
    return Claim("both runs completed", holds, f"exit codes {_pair(codes)}, steps {_pair(ends)}")


def _nothing_left(calm: Facts, hurt: Facts) -> Claim:
    left = calm.left_over + hurt.left_over
    detail = f"still running: {', '.join(map(str, left))}" if left else "no process carries either run's mark"
    return Claim("nothing left running", not left, detail)


def _buckets(calm: Facts, hurt: Facts) -> Claim:
    details, holds = [], True
    for name, facts in (("A", calm), ("B", hurt)):
        goodput = facts.goodput
        if goodput is None:
            return Claim("buckets sum to wall time", False, f"{name} left no journal")
        total = math.fsum(goodput.buckets.values())
        holds = holds and abs(total - goodput.wall_seconds) <= _SUM_SECONDS
        details.append(f"{name} {total:.3f} = {goodput.wall_seconds:.3f} s")
    return Claim("buckets sum to wall time", holds, ", ".join(details))


# -- the faults


def _made(made: Sequence[Made]) -> Claim:
    count = sum(one.done for one in made)
    return Claim("every kill of the plan was made", count == len(made), f"{count} of {len(made)}, by signal")


def _seen(rows: list[Row], hurt: Facts) -> Claim:
    right = sum(row.seen.right for row in rows)
    expected = sum(row.made.fault.hurts_workers for row in rows)
    incidents = len(hurt.state.incidents) if hurt.state else 0
    detail = f"{right} of {len(rows)}; {incidents} incidents, {expected} kills of workers"
    return Claim("each kill seen for what it was", right == len(rows) and incidents == expected, detail)


def _back(rows: list[Row]) -> Claim:
    of_workers = [row for row in rows if row.made.fault.hurts_workers]
    back = [row.made.back_seconds for row in of_workers if row.made.back_seconds is not None]
    detail = f"{len(back)} of {len(of_workers)}"
    if back:
        detail += f", in {min(back):.2f} to {max(back):.2f} s"
    return Claim("all ranks back after every kill", len(back) == len(of_workers), detail)


def _row(made: Made, hurt: Facts) -> Row:
    if not made.done:
        return Row(made, Seen(False, "never made"))
    if not made.fault.hurts_workers:
        return Row(made, _seen_beside(made, hurt.entries))
    again, equal = _replays_of(made, hurt.trace)
    return Row(made, _seen_worker(made, hurt.state), made.replayed(hurt.trace), again, equal)


def _seen_worker(made: Made, state: JobState | None) -> Seen:
    pids = {victim.pid for victim in made.victims}
    incident = next((i for i in (state.incidents.values() if state else ()) if _concerns(i, pids)), None)
    if incident is None:
        return Seen(False, "not noticed")
    lost = {c.pid: c for c in incident.casualties if c.pid in pids}
    killed = [c for c in lost.values() if c.exit is not None and c.exit.signal == SIGKILL]
    verdict = incident.verdict
    suspect = verdict.suspect if verdict is not None else None
    ranks_right = {c.rank for c in killed} == set(made.fault.ranks) and suspect in made.fault.ranks
    right = ranks_right and verdict is not None and verdict.symptom == "crash"
    return Seen(
        right=right,
        as_what="SIGKILL" if right else (verdict.sentence if verdict else "no verdict"),
        detect_seconds=min(c.at for c in lost.values()) - (made.at_ns or 0) / 1e9,
        incident=incident.number,
    )


def _concerns(incident: Incident, pids: set[int]) -> bool:
    return any(casualty.pid in pids and not casualty.killed_by_us for casualty in incident.casualties)


def _seen_beside(made: Made, entries: list[Entry]) -> Seen:
    """A spare or the nursery: nobody who trains. The journal notes the loss and the replacement."""
    killed = (made.at_ns or 0) / 1e9
    after = [entry for entry in entries if isinstance(entry, Record) and entry.at >= killed]
    if made.fault.kind == "nursery":
        lost = next((r for r in after if r.kind == "NurseryLost"), None)
        back = next((r for r in after if lost is not None and r.kind == "NurseryWarm" and r.at > lost.at), None)
        what, at = "lost", lost.at if lost is not None else None
    else:
        id = made.victims[0].id
        lost = next((r for r in after if r.kind == "ProcessLost" and r.event.get("id") == id), None)
        signal = (lost.event.get("exit") or {}).get("signal") if lost is not None else None
        back = next((r for r in after if lost is not None and r.at > lost.at and _is_new_spare(r)), None)
        what, at = (
            "SIGKILL",
            lost.event.get("seen_at") if lost is not None and signal == SIGKILL else None,
        )
    if at is None:
        return Seen(False, "not noticed")
    return Seen(True, what, at - killed, replaced_seconds=back.at - killed if back is not None else None)


def _is_new_spare(record: Record) -> bool:
    if record.kind != "ProcessWarm":
        return False
    changed = record.delta.get("processes", {}).get(record.event.get("id")) or {}
    return changed.get("purpose") == "spare"


# -- the training


def _losses(calm: Facts, hurt: Facts, steps: int) -> Claim:
    ours, theirs = calm.trace.committed(), hurt.trace.committed()
    wanted = [(step, rank) for step in range(1, steps + 1) for rank in range(calm.trace.ranks)]
    equal = sum(key in ours and key in theirs and ours[key].loss == theirs[key].loss for key in wanted)
    return Claim("losses equal, A and B", equal == len(wanted), f"{equal} of {len(wanted)} rank-steps, bit for bit")


def _replays(hurt: Facts) -> Claim:
    groups: dict[tuple[int, int], list[Stepped]] = {}
    for step in hurt.trace.steps:
        groups.setdefault((step.step, step.rank), []).append(step)
    again = [group for group in groups.values() if len(group) > 1]
    equal = sum(len({(step.loss, step.samples) for step in group}) == 1 for group in again)
    detail = f"{equal} of {len(again)} rank-steps, bit for bit"
    return Claim("replayed steps equal the first time", equal == len(again), detail)


def _replays_of(made: Made, trace: Trace) -> tuple[int, int]:
    """Rank-steps of the hurt life that the next one made again, and how many of them came out the same."""
    first = {(s.step, s.rank): s for s in trace.steps if s.life == made.life}
    again = [s for s in trace.steps if s.life == made.back_life and (s.step, s.rank) in first]
    return len(again), sum(s.loss == first[s.step, s.rank].loss for s in again)


def _samples(calm: Facts, hurt: Facts, steps: int) -> Claim:
    """Equal step by step, and in every whole epoch each sample once, whichever rank had it."""
    ours, theirs = (_by_step(facts.trace) for facts in (calm, hurt))
    same = sum(ours.get(step) == theirs.get(step) and bool(ours.get(step)) for step in range(1, steps + 1))
    order = [sample for step in range(1, steps + 1) for sample in theirs.get(step, ())]
    epochs = len(order) // TRAINING_SAMPLES
    uneven = _uneven_epochs([theirs.get(step, []) for step in range(1, steps + 1)])
    holds = same == steps and uneven == 0
    detail = f"{len(order):,}, {same} steps equal, {epochs - uneven} of {epochs} epochs"
    return Claim("each sample once per epoch", holds, detail)


def _by_step(trace: Trace) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for (step, _rank), seen in trace.committed().items():
        found.setdefault(step, []).extend(seen.samples)
    return {step: sorted(samples) for step, samples in found.items()}


def _uneven_epochs(batches: list[list[int]]) -> int:
    """A step that straddles two epochs is in both: what is counted is how often each sample came by its end.

    After e whole epochs and a part of the next, every sample has been seen e times, or e + 1 if it was in the part.
    """
    counts: Counter[int] = Counter()
    total, uneven, checked = 0, 0, 0
    for batch in batches:
        counts.update(batch)
        total += len(batch)
        whole = total // TRAINING_SAMPLES
        if whole > checked:
            checked = whole
            part = total - whole * TRAINING_SAMPLES
            more = sum(counts[sample] == whole + 1 for sample in range(TRAINING_SAMPLES))
            exact = sum(counts[sample] == whole for sample in range(TRAINING_SAMPLES))
            uneven += more != part or exact != TRAINING_SAMPLES - part
    return uneven


def _weights(calm: Facts, hurt: Facts) -> Claim:
    hashes = [str((facts.result or {}).get("weights_sha256", "")) for facts in (calm, hurt)]
    holds = bool(hashes[0]) and hashes[0] == hashes[1]
    shown = [value[:12] or "none" for value in hashes]
    return Claim("final weights equal", holds, f"sha256 {shown[0]}… {'=' if holds else '≠'} {shown[1]}…")


def _accuracy(calm: Facts, hurt: Facts) -> Claim:
    right = [(facts.result or {}).get("held_out_right") for facts in (calm, hurt)]
    of = (calm.result or {}).get("held_out")
    if not of or None in right:
        return Claim("held-out accuracy equal", False, "unknown")
    shown = [f"{100 * int(count or 0) / int(of):.2f} %" for count in right]
    return Claim("held-out accuracy equal", right[0] == right[1], f"{_pair(shown)} of {of} digits")


# -- words


def _pair(values: Sequence[object]) -> str:
    return f"{values[0]} and {values[1]}"
