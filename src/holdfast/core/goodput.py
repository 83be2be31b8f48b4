"""Where a job's time went: every moment from submission to the last record in exactly one bucket.

Purely computational, from the journal alone. The buckets partition the wall time, so they sum to it by construction.

What is assumed:
- `startup` lasts until every rank of the first incarnation has made a step. If no step of the job was ever seen it
  ends when the workers are assigned, and all time after that is `running`: nothing says what it was worth.
- A step is kept unless a later incarnation resumed from before it. Steps that were thrown away because a later
  incarnation resumed earlier count as `lost` even if the job ended before they were computed again.
- What the last incarnation did is kept: whether its last steps were saved is not known here.
- An incarnation that resumed from an unknown step makes everything before it `running` (kept or lost: unknown).
- Between two looks at the boards (about a second) steps are taken to have been made evenly.
- The first incarnation starts from step 0 unless it said otherwise.
- `detect` begins with the first sign of an incident: the earliest death that belongs to it, or the signal that stopped
  a worker. Time in which a job made no progress without such a sign is not told from slow progress.
- `regroup`, `restore` and `first_step` follow the assignment of workers in a recovery. What an attempt that died before
  its first step did is not known and counts as `first_step`.
- `muster` is waiting for processes and the store; `decide` is judgement and back-off.
- Time next to missing records is `unrecorded`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import msgspec

from holdfast.core.record import Entry, Record, Snapshot, advance
from holdfast.model.state import Incident, JobState, Phase, Purpose


class Bucket(StrEnum):
    STARTUP = "startup"
    PRODUCTIVE = "productive"
    LOST = "lost"
    RUNNING = "running"  # steps unknown
    DETECT = "detect"
    RELEASE = "release"
    DECIDE = "decide"
    MUSTER = "muster"
    REGROUP = "regroup"
    RESTORE = "restore"
    FIRST_STEP = "first_step"
    DRAIN = "drain"
    TEARDOWN = "teardown"
    UNRECORDED = "unrecorded"


class Life(msgspec.Struct, frozen=True):
    """What one incarnation did."""

    incarnation: int
    running_seconds: float
    from_step: int | None
    to_step: int | None
    lost_steps: int | None  # made and not kept; None: unknown


class Goodput(msgspec.Struct, frozen=True):
    wall_seconds: float
    buckets: dict[str, float]
    goodput: float | None  # share of wall time that was productive; None: unknown
    steps: int | None
    steps_lost: int | None
    incidents: int
    lives: tuple[Life, ...] = ()
    notes: tuple[str, ...] = ()


def account(entries: Iterable[Entry], until: float | None = None) -> Goodput:
    """Divide the time from submission to `until`, or to the last record."""
    story = _Story()
    for entry in entries:
        story.add(entry)
    story.end(until)
    spans = _with_detection(story)
    spans = [piece for span in spans for piece in _divided(story, span)]
    return _summed(story, spans)


class _Span(msgspec.Struct, frozen=True):
    start: float
    end: float
    bucket: Bucket
    incarnation: int


class _Seen(msgspec.Struct):
    """What is known of one incarnation."""

    looks: list[tuple[float, int]]
    resumed_from: int | None = None
    stepped: bool = False
    group_at: float | None = None
    restored_at: float | None = None


class _Story:
    """One pass over the journal: spans of time by phase, and what was seen on the way."""

    def __init__(self) -> None:
        self.state = JobState()
        self.spans: list[_Span] = []
        self.seen: dict[int, _Seen] = {}
        self.stops: dict[str, float] = {}
        self.start: float | None = None
        self.now = 0.0
        self.gaps = 0
        self._seq = 0
        self._broken = False

    def add(self, entry: Entry) -> None:
        expected = self._seq + 1
        hole = entry.seq > self._seq if isinstance(entry, Snapshot) else entry.seq != expected
        if isinstance(entry, Snapshot) and not hole and not self._broken:
            return
        if self.start is None:
            self._begin(entry)
        self.gaps += hole and not self._broken
        self._pass(entry.at, Bucket.UNRECORDED if hole or self._broken else self._bucket())
        self._broken = (self._broken or hole) and not isinstance(entry, Snapshot)
        self._seq = entry.seq
        if self._broken:
            return
        self.state = advance(self.state, entry)
        if isinstance(entry, Record):
            self._look(entry)

    def end(self, until: float | None) -> None:
        if self.start is None:
            self.start = self.now = until if until is not None else 0.0
        if until is not None and self.state.phase is not Phase.OVER:
            self._pass(until, Bucket.UNRECORDED if self._broken else self._bucket())

    def _begin(self, entry: Entry) -> None:
        started = entry.state.started_at if isinstance(entry, Snapshot) else entry.at
        self.start = self.now = min(started, entry.at) if started > 0 else entry.at

    def _pass(self, at: float, bucket: Bucket) -> None:
        """Events are in the order in which they were handled; one that was observed earlier takes no time."""
        if at > self.now:
            self.spans.append(_Span(self.now, at, bucket, int(self.state.incarnation)))
            self.now = at

    def _bucket(self) -> Bucket:
        """What the job has been doing since the last record."""
        state = self.state
        if state.phase is Phase.TRAINING:
            if state.open_incident:
                return Bucket.FIRST_STEP
            return Bucket.RUNNING if state.incidents or _all_stepped(state) else Bucket.STARTUP
        if state.phase is Phase.MUSTERING:
            return Bucket.MUSTER if state.open_incident else Bucket.STARTUP
        return _BY_PHASE[state.phase]

    def _look(self, entry: Record) -> None:
        event, incarnation = entry.event, int(self.state.incarnation)
        step = event.get("step")
        if entry.kind in ("Progressed", "ProcessLost", "WorkerRaised") and isinstance(step, int):
            self._of(incarnation).looks.append((self.now, step))
        elif entry.kind == "WorkerStepped":
            self._stepped(event, incarnation)
        elif entry.kind == "ProcessStopped":
            self.stops.setdefault(str(event.get("id")), self.now)
        elif entry.kind == "ProcessContinued":
            self.stops.pop(str(event.get("id")), None)

    def _stepped(self, event: dict[str, Any], incarnation: int) -> None:
        process = self.state.processes.get(str(event.get("id")))
        if process is not None and process.purpose is Purpose.WORKER:
            incarnation = int(process.incarnation)
        seen = self._of(incarnation)
        seen.stepped = True
        seen.resumed_from = _least(seen.resumed_from, event.get("resumed_from"))
        seen.group_at = _most(seen.group_at, event.get("group_at"))
        seen.restored_at = _most(seen.restored_at, event.get("restored_at"))

    def _of(self, incarnation: int) -> _Seen:
        return self.seen.setdefault(incarnation, _Seen([]))

    @property
    def steps_known(self) -> bool:
        return any(seen.stepped or seen.looks for seen in self.seen.values())

    def kept(self, incarnation: int) -> float | None:
        """The last step of this incarnation that is part of the result; None: unknown."""
        later = [seen.resumed_from for number, seen in self.seen.items() if number > incarnation and seen.stepped]
        known = [step for step in later if step is not None]
        return None if len(known) < len(later) else min(known, default=math.inf)

    def first_step(self, incarnation: int) -> int | None:
        seen = self.seen.get(incarnation)
        if seen is not None and seen.resumed_from is not None:
            return seen.resumed_from
        return 0 if incarnation <= 1 else None

    def looks(self, incarnation: int) -> list[tuple[float, int]]:
        seen = self.seen.get(incarnation)
        return sorted(seen.looks) if seen else []


_BY_PHASE = {
    Phase.NEW: Bucket.STARTUP,
    Phase.WARMING: Bucket.STARTUP,
    Phase.RELEASING: Bucket.RELEASE,
    Phase.RESTING: Bucket.DECIDE,
    Phase.LEAVING: Bucket.TEARDOWN,
    Phase.STOPPING: Bucket.DRAIN,
    Phase.FAILING: Bucket.TEARDOWN,
    Phase.OVER: Bucket.TEARDOWN,
}


def _all_stepped(state: JobState) -> bool:
    workers = [
        process
        for process in state.processes.values()
        if process.purpose is Purpose.WORKER and process.incarnation == state.incarnation
    ]
    return len(workers) >= state.terms.world and all(worker.stepped for worker in workers)


# -- detection


def first_sign(incident: Incident, stops: dict[str, float] | None = None) -> float:
    """When the first thing that belongs to an incident was observed."""
    signs = [casualty.at for casualty in incident.casualties]
    if stops:
        signs += [stops[c.id] for c in incident.casualties if c.sign == "stop" and c.id in stops]
    return min([incident.opened_at, *signs])


def _with_detection(story: _Story) -> list[_Span]:
    spans = story.spans
    for incident in story.state.incidents.values():
        spans = _painted(spans, first_sign(incident, story.stops), incident.opened_at)
    return spans


def _painted(spans: list[_Span], start: float, end: float) -> list[_Span]:
    """Time in which something had already gone wrong, and the job was taken to be well."""
    painted = []
    for span in spans:
        low, high = max(span.start, start), min(span.end, end)
        if low < high and span.bucket in (Bucket.RUNNING, Bucket.STARTUP):
            painted += _cut(span, low, high, Bucket.DETECT)
        else:
            painted.append(span)
    return painted


def _cut(span: _Span, low: float, high: float, bucket: Bucket) -> list[_Span]:
    """`span` with what lies between `low` and `high` in another bucket."""
    pieces = [
        _Span(span.start, low, span.bucket, span.incarnation),
        _Span(low, high, bucket, span.incarnation),
        _Span(high, span.end, span.bucket, span.incarnation),
    ]
    return [piece for piece in pieces if piece.end > piece.start]


# -- division


def _divided(story: _Story, span: _Span) -> list[_Span]:
    if span.bucket is Bucket.FIRST_STEP:
        return _divided_recovery(story, span)
    if span.bucket is Bucket.STARTUP and not story.steps_known and span.incarnation:
        return _without_steps(story, span)
    if span.bucket is Bucket.RUNNING and story.steps_known:
        return _divided_running(story, span)
    return [span]


def _divided_recovery(story: _Story, span: _Span) -> list[_Span]:
    seen = story.seen.get(span.incarnation)
    if seen is None or not seen.stepped:
        return [span]
    grouped = _within(span, seen.group_at, span.start)
    restored = _within(span, seen.restored_at, grouped)
    pieces = _cut(span, span.start, grouped, Bucket.REGROUP)
    return [
        part
        for piece in pieces
        for part in (_cut(piece, grouped, restored, Bucket.RESTORE) if piece.bucket is span.bucket else [piece])
    ]


def _within(span: _Span, at: float | None, default: float) -> float:
    return default if at is None else min(max(at, default), span.end)


def _without_steps(story: _Story, span: _Span) -> list[_Span]:
    """Nothing says when such a job had started up but that its workers were running."""
    assigned = story.state.training_at
    if span.incarnation != story.state.incarnation or assigned <= 0:
        return [span]
    low = min(max(assigned, span.start), span.end)
    return _cut(span, low, span.end, Bucket.RUNNING)


def _divided_running(story: _Story, span: _Span) -> list[_Span]:
    kept = story.kept(span.incarnation)
    if kept is None:
        return [span]
    crossing = _crossing(story, span.incarnation, kept)
    if crossing is None:
        return [span]
    low = min(max(crossing, span.start), span.end)
    productive = _Span(span.start, low, Bucket.PRODUCTIVE, span.incarnation)
    lost = _Span(low, span.end, Bucket.LOST, span.incarnation)
    return [piece for piece in (productive, lost) if piece.end > piece.start]


def _crossing(story: _Story, incarnation: int, kept: float) -> float | None:
    """When the incarnation made the first step that was not kept: infinity if never, None if nobody knows."""
    if kept == math.inf:
        return math.inf
    looks = story.looks(incarnation)
    if not looks:
        return None
    begun = next((span.start for span in story.spans if _runs(span, incarnation)), looks[0][0])
    first = story.first_step(incarnation)
    before = (begun, float(first + 1 if first is not None else looks[0][1]))
    if before[1] > kept:
        return begun
    for at, step in looks:
        if step > kept:
            share = (kept - before[1]) / (step - before[1])
            return before[0] + share * max(0.0, at - before[0])
        if step >= before[1]:
            before = (max(at, before[0]), float(step))
    return math.inf


def _runs(span: _Span, incarnation: int) -> bool:
    return span.incarnation == incarnation and span.bucket is Bucket.RUNNING


# -- the sum


def _summed(story: _Story, spans: list[_Span]) -> Goodput:
    start = story.start or 0.0
    wall = story.now - start
    buckets = {
        bucket.value: math.fsum(span.end - span.start for span in spans if span.bucket is bucket) for bucket in Bucket
    }
    lives = tuple(_life(story, number, spans) for number in sorted({s.incarnation for s in spans} | set(story.seen)))
    lives = tuple(life for life in lives if life.incarnation > 0)
    known = story.steps_known and not buckets[Bucket.RUNNING] and not buckets[Bucket.UNRECORDED]
    steps = [life.to_step for life in lives if life.to_step is not None]
    lost = [life.lost_steps for life in lives]
    return Goodput(
        wall_seconds=wall,
        buckets=buckets,
        goodput=buckets[Bucket.PRODUCTIVE] / wall if known and wall > 0 else None,
        steps=max(steps, default=None),
        steps_lost=None if not story.steps_known or None in lost else sum(step or 0 for step in lost),
        incidents=len(story.state.incidents),
        lives=lives,
        notes=_notes(story, buckets),
    )


def _life(story: _Story, number: int, spans: list[_Span]) -> Life:
    looks = story.looks(number)
    last = max((step for _, step in looks), default=None)
    kept = story.kept(number)
    lost: int | None = 0
    if kept is None:
        lost = None
    elif kept != math.inf:
        first = story.first_step(number)
        seen = story.seen.get(number)
        end = last if last is not None else (first if seen is None or not seen.stepped else None)
        lost = None if end is None and seen is not None and seen.stepped else max(0, int((end or 0) - kept))
    running = math.fsum(
        span.end - span.start
        for span in spans
        if span.incarnation == number and span.bucket in (Bucket.RUNNING, Bucket.PRODUCTIVE, Bucket.LOST)
    )
    stepped = number in story.seen and (story.seen[number].stepped or last is not None)
    return Life(number, running, story.first_step(number) if stepped else None, last, lost)


def _notes(story: _Story, buckets: dict[str, float]) -> tuple[str, ...]:
    notes = []
    if not story.steps_known:
        notes.append("no steps were seen: running time may be productive or not")
    elif buckets[Bucket.RUNNING]:
        notes.append("an incarnation did not say which step it resumed from: what was kept before it is unknown")
    if story.gaps:
        notes.append(f"{story.gaps} gap{'' if story.gaps == 1 else 's'} in the journal")
    if story.state.phase is not Phase.OVER:
        notes.append("the job was not over at the last record")
    return tuple(notes)


def _least(one: int | None, other: Any) -> int | None:
    if not isinstance(other, int):
        return one
    return other if one is None else min(one, other)


def _most(one: float | None, other: Any) -> float | None:
    if not isinstance(other, int | float):
        return one
    return float(other) if one is None else max(one, float(other))
