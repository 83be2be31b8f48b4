"""Whatever is told in whatever order: `decide` answers, the answer adds up, and nothing goes backwards."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.core import fold, job
from holdfast.model import actions, events
from holdfast.model.exits import Exit, Raised
from holdfast.model.spec import Limits, Start, Terms
from holdfast.model.state import JobState, Phase, Status

# The first processes by name and one that never was: shells repeat themselves and remember the dead.
IDS = st.sampled_from([f"p{number}" for number in range(1, 9)] + ["p99", "stranger"])
STEPS = st.none() | st.integers(0, 50)
INCARNATIONS = st.integers(0, 4)
CHANCES = st.floats(0, 1, exclude_max=True)
LISTENING = st.lists(IDS, max_size=3).map(tuple)
EXITS = st.one_of(
    st.builds(Exit, code=st.sampled_from((0, 1, 137))),
    st.builds(Exit, signal=st.sampled_from((9, 15))),
    st.just(Exit()),
)
ERRORS = st.builds(Raised, type=st.just("ValueError"), message=st.sampled_from(("", "a\nb")), traceback=st.just(""))
TERMS = st.builds(
    Terms,
    world=st.integers(1, 3),
    start=st.sampled_from(Start),
    keeper=st.booleans(),
    spares=st.integers(0, 2),
    max_restarts=st.none() | st.integers(0, 3),
    budget=st.integers(0, 3),
    refill_steps=st.integers(0, 5),
    shell_codes=st.booleans(),
    limits=st.builds(Limits, grace_seconds=st.sampled_from((0.0, 0.05))),
)


class Job(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.state = JobState()
        self.folded = JobState()
        self.timers = {}
        self.finishes = 0

    def tell(self, kind, **fields):
        self.now += 0.01
        before = self.state
        decision = job.decide(before, kind(at=self.now, **fields))
        self.state = decision.state
        self.folded = fold.apply(self.folded, fold.delta(before, decision.state))
        if kind is events.TimerFired:
            self.timers.pop(fields["timer"], None)
        for action in decision.actions:
            if isinstance(action, actions.SetTimer):
                self.timers[action.timer] = self.now + action.seconds
            elif isinstance(action, actions.CancelTimer):
                self.timers.pop(action.timer, None)
            elif isinstance(action, actions.Finish):
                self.finishes += 1
        assert decision.reason or not decision.actions
        assert decision.state.incarnation >= before.incarnation
        assert before.best_step is None or decision.state.best_step >= before.best_step

    @initialize(terms=TERMS)
    def submitted(self, terms):
        self.tell(events.Submitted, terms=terms)

    @rule(terms=TERMS)
    def submitted_again(self, terms):
        self.tell(events.Submitted, terms=terms)

    @rule(generation=st.integers(1, 3))
    def nursery_warm(self, generation):
        self.tell(events.NurseryWarm, generation=generation)

    @rule()
    def nursery_lost(self):
        self.tell(events.NurseryLost, reason="any")

    @rule(id=IDS)
    def warm(self, id):
        self.tell(events.ProcessWarm, id=id, pid=7)

    @rule()
    def all_warm(self):
        """Random names alone would seldom bring a job as far as training."""
        for process in list(self.state.processes.values()):
            self.tell(events.ProcessWarm, id=process.id, pid=7)
        self.tell(events.StoreOpen, incarnation=self.state.store.incarnation, port=1)

    @rule(id=IDS)
    def stillborn(self, id):
        self.tell(events.ProcessStillborn, id=id, reason="any")

    @rule(id=IDS, exit=EXITS, listening=LISTENING, step=STEPS, chance=CHANCES)
    def lost(self, id, exit, listening, step, chance):
        known = {"listening": listening, "step": step, "chance": chance}
        self.tell(events.ProcessLost, id=id, seen_at=self.now, sign="mutex", exit=exit, **known)

    @rule(exit=EXITS)
    def all_lost(self, exit):
        for process in list(self.state.processes.values()):
            self.tell(events.ProcessLost, id=process.id, seen_at=self.now, sign="mutex", exit=exit)

    @rule(id=IDS, exit=EXITS)
    def gone(self, id, exit):
        self.tell(events.ProcessGone, id=id, exit=exit)

    @rule(id=IDS)
    def stopped(self, id):
        self.tell(events.ProcessStopped, id=id, signal=19)

    @rule(id=IDS)
    def continued(self, id):
        self.tell(events.ProcessContinued, id=id)

    @rule(id=IDS, error=ERRORS, listening=LISTENING, step=STEPS, chance=CHANCES)
    def raised(self, id, error, listening, step, chance):
        self.tell(events.WorkerRaised, id=id, error=error, listening=listening, step=step, chance=chance)

    @rule(id=IDS, code=st.sampled_from((0, 1)))
    def ended(self, id, code):
        self.tell(events.WorkerEnded, id=id, code=code)

    @rule(id=IDS, resumed=STEPS)
    def stepped(self, id, resumed):
        known = {"script_at": self.now, "group_at": self.now, "restored_at": None}
        self.tell(events.WorkerStepped, id=id, resumed_from=resumed, basis="fresh", **known)

    @rule()
    def learned(self):
        self.tell(events.Learned, modules=9)

    @rule()
    def changed(self):
        self.tell(events.SourcesChanged, files=("train.py",))

    @rule(step=STEPS)
    def progressed(self, step):
        self.tell(events.Progressed, step=step, basis="fresh")

    @rule(incarnation=INCARNATIONS)
    def store_open(self, incarnation):
        self.tell(events.StoreOpen, incarnation=incarnation, port=1)

    @rule(incarnation=INCARNATIONS)
    def store_failed(self, incarnation):
        self.tell(events.StoreFailed, incarnation=incarnation, reason="any")

    @rule(which=st.integers(0, 20))
    def rings(self, which):
        names = [*self.timers, "rest", "birth:p99", "nonsense"]
        self.tell(events.TimerFired, timer=names[which % len(names)])

    @rule(signal=st.sampled_from((2, 15)))
    def stop(self, signal):
        self.tell(events.StopAsked, signal=signal)

    @invariant()
    def the_journal_adds_up(self):
        assert self.folded == self.state

    @invariant()
    def timers_agree(self):
        assert self.timers == self.state.timers

    @invariant()
    def it_finishes_once(self):
        assert self.finishes == (self.state.phase is Phase.OVER)

    @invariant()
    def recovering_means_an_open_incident(self):
        assert (self.state.status is Status.RECOVERING) == bool(self.state.open_incident)

    @invariant()
    def restarts_stay_within_the_users_limit(self):
        limit = self.state.terms.max_restarts
        assert limit is None or self.state.budget.restarts <= limit
        assert self.state.budget.tokens >= 0

    @invariant()
    def ranks_are_taken_once(self):
        state = self.state
        ranks = [p.rank for p in state.processes.values() if p.incarnation == state.incarnation and p.rank is not None]
        assert len(ranks) == len(set(ranks))


TestJob = Job.TestCase
TestJob.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
