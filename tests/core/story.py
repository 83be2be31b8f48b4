"""A job told event by event: the state after each, and the last decision. It performs nothing."""

from collections import Counter

from holdfast.core.job import decide
from holdfast.model import events
from holdfast.model.exits import Exit, Raised
from holdfast.model.spec import Start, Terms
from holdfast.model.state import JobState

KILLED = Exit(signal=9)
SEGFAULT = Exit(signal=11)
WELL = Exit(code=0)
ERROR = Raised(type="ValueError", message="no such file", traceback="Traceback")


class Story:
    def __init__(self, **terms):
        self.terms = Terms(**({"world": 2} | terms))
        self.state = JobState()
        self.now = 0.0
        self.last = None

    def tell(self, kind, after=0.001, **fields):
        self.now += after
        self.last = decide(self.state, kind(at=self.now, **fields))
        self.state = self.last.state
        return self

    # -- what the last decision did

    @property
    def did(self):
        return [type(action).__name__ for action in self.last.actions]

    def count(self, kind):
        return Counter(self.did)[kind.__name__]

    def actions(self, kind):
        return [action for action in self.last.actions if isinstance(action, kind)]

    def ids(self, purpose, stage=None):
        return [
            p.id for p in self.state.processes.values() if p.purpose is purpose and (stage is None or p.stage is stage)
        ]

    # -- chapters

    def submitted(self):
        return self.tell(events.Submitted, terms=self.terms)

    def mustering(self):
        """The nursery is warm, if one is used, and every process is being born."""
        self.submitted()
        return self.tell(events.NurseryWarm, generation=1) if self.terms.start is Start.NURSERY else self

    def training(self):
        self.mustering()
        return self.warm_all().opened()

    def stepped(self, step=5):
        """Every rank has made a step, and the boards show where the job is."""
        for id in [p.id for p in self.workers()]:
            self.tell(events.WorkerStepped, id=id, script_at=self.now, group_at=None, restored_at=None, **_FRESH)
        return self.tell(events.Progressed, step=step, basis="optimizer")

    def leaving(self):
        self.training()
        for worker in self.workers():
            self.tell(events.WorkerEnded, id=worker.id, code=0)
        return self

    # -- sentences

    def workers(self):
        found = [
            p for p in self.state.processes.values() if p.rank is not None and p.incarnation == self.state.incarnation
        ]
        return sorted(found, key=lambda p: p.rank)

    def rank(self, rank):
        return next(p.id for p in self.workers() if p.rank == rank)

    def warm_all(self):
        for process in [p for p in self.state.processes.values() if p.stage.value == "starting"]:
            self.tell(events.ProcessWarm, id=process.id, pid=100 + int(process.id[1:]))
        return self

    def opened(self, port=29500):
        return self.tell(events.StoreOpen, incarnation=self.state.store.incarnation, port=port)

    def lose(self, id, exit=KILLED, **known):
        fields = {"seen_at": self.now, "sign": "mutex"} | known
        return self.tell(events.ProcessLost, id=id, exit=exit, **fields)

    def lose_rank(self, rank, exit=KILLED, **known):
        return self.lose(self.rank(rank), exit, **known)

    def raised(self, rank, error=ERROR, **known):
        return self.tell(events.WorkerRaised, id=self.rank(rank), error=error, **known)

    def bury(self, exit=KILLED):
        """Everybody that was sent SIGKILL is seen to be dead."""
        for id in [p.id for p in self.state.processes.values() if p.stage.value == "condemned"]:
            self.lose(id, exit)
        return self

    def ring(self, timer):
        """The timer is due."""
        return self.tell(events.TimerFired, after=max(0.0, self.state.timers[timer] - self.now), timer=timer)


_FRESH = {"resumed_from": None, "basis": "fresh"}
