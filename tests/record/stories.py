"""Jobs told step by step, for what looks back at them: events go through the real `decide` into a real journal."""

from __future__ import annotations

from holdfast.core.job import decide
from holdfast.model import events
from holdfast.model.exits import Exit, Raised
from holdfast.model.ids import Incarnation, JobId, ProcessId, Step
from holdfast.model.spec import JobSpec, Mode, Start, Terms
from holdfast.model.state import JobState, Purpose, Stage
from holdfast.ports.journal import Journal, MemoryJournal, Record, record

WALL = 1_790_000_000.0
TERMS = Terms(world=2, start=Start.COLD, keeper=False)


def spec(job_id: str = "job-20261119-214200-0001", name: str = "digits", terms: Terms = TERMS) -> JobSpec:
    return JobSpec(
        job_id=JobId(job_id),
        name=name,
        mode=Mode.SCRIPT,
        script="train.py",
        arguments=("--epochs", "3"),
        python="/usr/bin/python3",
        cwd="/home/u",
        role="default",
        run_id="none",
        master_addr="127.0.0.1",
        master_port=0,
        environment={"SECRET": "hush"},
        terms=terms,
    )


class Story:
    """The pump, with the machine in the author's hands."""

    def __init__(self, journal: Journal | None = None, terms: Terms = TERMS, at: float = 100.0) -> None:
        self.journal = journal if journal is not None else MemoryJournal()
        self.state = JobState()
        self.at = at
        self.seq = 0
        self.feed(events.Submitted(at=at, terms=terms))

    @property
    def records(self) -> list[Record]:
        return list(self.journal.records())

    def wait(self, seconds: float) -> Story:
        self.at += seconds
        return self

    def feed(self, event: events.AnyEvent) -> Story:
        self.seq += 1
        decision = decide(self.state, event)
        self.journal.append(record(self.seq, WALL + event.at, event, self.state, decision), decision.state)
        self.state = decision.state
        return self

    def workers(self) -> list[ProcessId]:
        """Of the current incarnation, by rank."""
        found = [
            p
            for p in self.state.processes.values()
            if p.purpose is Purpose.WORKER and p.incarnation == self.state.incarnation
        ]
        return [p.id for p in sorted(found, key=lambda p: p.rank or 0)]

    def muster(self) -> Story:
        """Every process comes, and the store opens."""
        for id in self.workers():
            if self.state.processes[id].stage is Stage.STARTING:
                self.feed(events.ProcessWarm(at=self.at, id=id, pid=1000 + int(id[1:])))
        return self.feed(
            events.StoreOpen(at=self.at, incarnation=Incarnation(self.state.store.incarnation), port=29500)
        )

    def first_steps(
        self, resumed_from: int | None = 0, group_at: float | None = None, restored_at: float | None = None
    ) -> Story:
        for id in self.workers():
            self.feed(
                events.WorkerStepped(
                    at=self.at,
                    id=id,
                    script_at=self.at,
                    group_at=group_at,
                    restored_at=restored_at,
                    resumed_from=None if resumed_from is None else Step(resumed_from),
                    basis="fresh",
                )
            )
        return self

    def look(self, step: int | None) -> Story:
        return self.feed(events.Progressed(at=self.at, step=None if step is None else Step(step), basis="fresh"))

    def lose(
        self, rank: int, signal: int = 9, seen: float = 0.0, step: int | None = None, sign: str = "mutex"
    ) -> Story:
        return self.feed(
            events.ProcessLost(
                at=self.at,
                id=self.workers()[rank],
                seen_at=self.at - seen,
                sign=sign,
                exit=Exit(signal=signal),
                step=None if step is None else Step(step),
            )
        )

    def raise_in(self, rank: int, type: str = "ValueError", message: str = "boom") -> Story:
        trace = f'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n{type}: {message}\n'
        return self.feed(events.WorkerRaised(at=self.at, id=self.workers()[rank], error=Raised(type, message, trace)))

    def end(self) -> Story:
        for id in self.workers():
            self.feed(events.WorkerEnded(at=self.at, id=id, code=0))
        return self

    def leave(self) -> Story:
        for id in self.workers():
            self.feed(events.ProcessLost(at=self.at, id=id, seen_at=self.at, sign="pidfd", exit=Exit(code=0)))
        return self


def recovered_once(journal: Journal | None = None) -> Story:
    """Two ranks; one is killed at step 17 and the job resumes from 10; it ends well. Every phase takes its own time."""
    story = Story(journal)
    story.wait(2.0).muster().wait(1.0).first_steps(0)  # startup 3 s
    story.wait(4.0).look(9).wait(4.0).look(17)  # 8 s, of which the last 3.5 s after step 10
    story.wait(0.5).lose(1, seen=0.25, step=17)  # 0.25 s more, then 0.25 s to notice
    story.wait(0.125).lose(0, signal=9)  # release
    story.wait(0.5).muster()  # muster
    story.wait(1.0).first_steps(10, group_at=story.at - 0.75, restored_at=story.at - 0.5)
    story.wait(5.0).look(30).end()
    return story.wait(0.5).leave()
