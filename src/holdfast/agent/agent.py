"""The agent of one job on one machine: performs what the core decides and tells the core what happens.

It decides nothing about the job. What it adds to bare events are facts that only a shell can know at that moment: who
could still hear a signal, which step the boards show, whether the kernel ran out of memory.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from holdfast.adapters.posix import Handle, PosixProcesses, Watcher
from holdfast.agent import contract, evidence, reservation, styles
from holdfast.agent.console import Console
from holdfast.agent.pump import Pump
from holdfast.agent.records import Records
from holdfast.agent.sources import Sources
from holdfast.agent.voice import Voice
from holdfast.model import actions, events
from holdfast.model.actions import AnyAction, Level
from holdfast.model.exits import Exit, Raised
from holdfast.model.ids import Incarnation, ProcessId, Rank, Step
from holdfast.model.output import OutputPlan
from holdfast.model.spec import JobSpec, Mode
from holdfast.model.state import JobState, Phase, Purpose, Stage
from holdfast.worker import wire
from holdfast.worker.board import Basis, Board, Word

_END_SECONDS = 10.0
_OUTPUT_SECONDS = 10.0
_ORPHAN_SECONDS = 0.25
_RETRY_PORT_SECONDS = 0.02
_SAMPLES = ((600.0, 1.0), (7200.0, 5.0), (float("inf"), 30.0))  # (up to this age, a look at the boards this often)


class Agent(Watcher):
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        spec: JobSpec,
        output: OutputPlan,
        records: Records,
        voice: Voice,
        console: Console,
        *,
        keeps_terminal: bool,
        spared_pid: int,
    ) -> None:
        self._loop = loop
        self._spec = spec
        self._output = output
        self._records = records
        self._voice = voice
        self._console = console
        self._random = random.Random()
        self._oom = evidence.OomWatch()
        self._sources = Sources()
        self._environment = os.environ | spec.environment
        self._pump = Pump(records.journal, self._perform, time.time, self._complain)
        self._processes = PosixProcesses(
            loop,
            self,
            spec.python,
            spec.cwd,
            self._environment,
            keeps_terminal=keeps_terminal,
            spared_pid=spared_pid,
        )
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._generation = 0
        self._nursery_modules = 0
        self._libraries: list[str] = []
        self._label_offset: int | None = None
        self._identities: dict[Rank, dict[str, Any]] = {}  # of trackers' runs, as the last life of a rank told
        self._port_held: socket.socket | None = None
        self._result: asyncio.Future[int] = loop.create_future()
        self._started = time.monotonic()
        self._hands: dict[type, Callable[[Any], None]] = {
            actions.StartNursery: self._start_nursery,
            actions.Preload: self._preload,
            actions.StartProcess: self._start_process,
            actions.OpenStore: self._open_store,
            actions.Assign: self._assign,
            actions.Terminate: self._terminate,
            actions.Kill: self._kill,
            actions.SetTimer: self._set_timer,
            actions.CancelTimer: self._cancel_timer,
            actions.Say: self._say,
            actions.CloseIncident: self._close_incident,
            actions.Finish: self._finish,
        }

    @property
    def state(self) -> JobState:
        return self._pump.state

    def run(self) -> int:
        """Keep the job running until it is over; the exit code."""
        for name in self._spec.signals:
            number = signal.Signals[name]
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup means it
                self._loop.add_signal_handler(number, self._asked_to_stop, int(number))
        self._loop.call_soon(self._look_at_boards)
        self._loop.call_soon(self._feed, events.Submitted(at=time.monotonic(), terms=self._spec.terms))
        return self._loop.run_until_complete(self._result)

    # -- in

    def _feed(self, event: events.AnyEvent) -> None:
        self._pump.feed(event)

    def _asked_to_stop(self, number: int) -> None:
        self._feed(events.StopAsked(at=time.monotonic(), signal=number))

    def warm(self, handle: Handle) -> None:
        self._feed(events.ProcessWarm(at=time.monotonic(), id=handle.id, pid=handle.pid or 0))

    def stillborn(self, handle: Handle, reason: str) -> None:
        self._feed(events.ProcessStillborn(at=time.monotonic(), id=handle.id, reason=reason))
        self._let_go(handle)

    def lost(self, handle: Handle, sign: str, exit: Exit, seen_at: float) -> None:
        first = self.state.phase is Phase.TRAINING
        killed = exit.signal == signal.SIGKILL and not handle.unwanted
        self._feed(
            events.ProcessLost(
                at=time.monotonic(),
                seen_at=seen_at,
                id=handle.id,
                sign=sign,
                exit=exit,
                evidence=self._oom.since_last(handle.pid) if killed else (),
                listening=self._listening(handle.id) if first and exit != Exit(code=0) else (),
                step=self._newest_step() if first else None,
                chance=self._random.random(),
            )
        )

    def gone(self, handle: Handle, exit: Exit) -> None:
        self._feed(events.ProcessGone(at=time.monotonic(), id=handle.id, exit=exit))
        self._loop.call_later(_ORPHAN_SECONDS, self._processes.sweep_orphans)
        self._let_go(handle)

    def _let_go(self, handle: Handle) -> None:
        self._console.close(handle.id)
        self._processes.forget(handle.id)

    def stopped(self, handle: Handle, number: int) -> None:
        self._feed(events.ProcessStopped(at=time.monotonic(), id=handle.id, signal=number))

    def continued(self, handle: Handle) -> None:
        self._feed(events.ProcessContinued(at=time.monotonic(), id=handle.id))

    def message(self, handle: Handle, message: wire.Message) -> None:
        now = time.monotonic()
        match message["op"]:
            case "first_step":
                self._feed(self._first_step(handle, message, now))
            case "raised":
                error = Raised(message["type"], message["message"], message["traceback"])
                self._feed(
                    events.WorkerRaised(
                        at=now,
                        id=handle.id,
                        error=error,
                        listening=self._listening(handle.id),
                        step=self._newest_step(),
                        chance=self._random.random(),
                    )
                )
            case "ended":
                self._look_at_steps(now)
                listening = self._listening(handle.id) if message["code"] else ()
                self._feed(events.WorkerEnded(at=now, id=handle.id, code=message["code"], listening=listening))
            case "imports":
                self._libraries = message["libraries"]
                self._sources.watch(message["own_files"])
                self._feed(events.Learned(at=now, modules=len(self._libraries)))
            case "identity":
                rank = self.state.processes[handle.id].rank
                self._identities[rank or Rank(0)] = message["known"]
            case "store":
                self._store_answered(handle, message, now)

    def _first_step(self, handle: Handle, message: wire.Message, now: float) -> events.WorkerStepped:
        board = handle.board
        assert board is not None
        self._note_label(board)
        return events.WorkerStepped(
            at=now,
            id=handle.id,
            script_at=board[Word.SCRIPT_AT] / 1e9,
            group_at=board[Word.GROUP_AT] / 1e9 or None,
            restored_at=board[Word.RESTORED_AT] / 1e9 or None,
            resumed_from=message["resumed_from"],
            basis=message["basis"],
        )

    def nursery_message(self, message: wire.Message) -> None:
        now = time.monotonic()
        match message["op"]:
            case "ready" if message["unfit"] and not self._libraries:
                self._processes.end_nursery()
                self._feed(events.NurseryLost(at=now, reason=message["unfit"], final=True))
            case "ready" | "preloaded" if message["unfit"]:
                self._libraries = []
                self._processes.end_nursery()
                self._feed(events.NurseryLost(at=now, reason=message["unfit"]))
            case "ready" | "preloaded":
                if message["modules"] > self._nursery_modules or message["op"] == "ready":
                    self._generation += 1
                self._nursery_modules = message["modules"]
                self._feed(events.NurseryWarm(at=now, generation=self._generation))
            case "refused":
                self._processes.end_nursery()
                self._feed(events.NurseryLost(at=now, reason=message["reason"]))
            case "spoiled":
                self._libraries = []  # whatever it was, the plain nursery is good enough
                self._processes.end_nursery()
                reason = f"importing {message['module']} ahead: {message['reason']}"
                self._feed(events.NurseryLost(at=now, reason=reason, final=not message["learned"]))

    def nursery_lost(self, reason: str) -> None:
        self._feed(events.NurseryLost(at=time.monotonic(), reason=reason))

    # -- facts

    def _workers(self) -> list[ProcessId]:
        state = self.state
        return [
            process.id
            for process in state.processes.values()
            if process.purpose is Purpose.WORKER and process.incarnation == state.incarnation
        ]

    def _listening(self, failed: ProcessId) -> tuple[ProcessId, ...]:
        state = self.state
        return tuple(
            id
            for id in self._workers()
            if id != failed and state.processes[id].stage is Stage.RUNNING and self._processes.hears(id)
        )

    def _newest_step(self) -> Step | None:
        """The newest step on any board of this incarnation, if all that have stepped know theirs."""
        newest = None
        for id in self._workers():
            board = self._processes.board(id)
            if board is None or not board[Word.STEPS]:
                continue
            self._note_label(board)
            step = board.known(Word.JOB_STEP)
            if step is None:
                return None
            newest = step if newest is None else max(newest, step)
        return Step(newest) if newest is not None else None

    def _note_label(self, board: Board) -> None:
        offset = board.known(Word.LABEL_OFFSET)
        if offset is not None:
            self._label_offset = offset

    def _look_at_boards(self) -> None:
        now = time.monotonic()
        age = now - self._started
        self._loop.call_later(next(every for upto, every in _SAMPLES if age < upto), self._look_at_boards)
        if self.state.phase is Phase.TRAINING:
            self._look_at_steps(now)
        self._oom.listen()
        for problem in self._records.problems():
            self._voice.once(Level.WARNING, problem)

    def _look_at_steps(self, now: float) -> None:
        step = self._newest_step()
        if step is not None and step != self.state.best_step:
            self._feed(events.Progressed(at=now, step=step, basis=self._basis()))

    def _basis(self) -> str:
        boards = (self._processes.board(id) for id in self._workers())
        return next((Basis(board[Word.BASIS]).name.lower() for board in boards if board is not None), "none")

    # -- out

    def _perform(self, action: AnyAction) -> None:
        self._hands[type(action)](action)

    def _start_nursery(self, _action: actions.StartNursery) -> None:
        title = f"holdfast: nursery of {self._spec.name}"
        self._processes.start_nursery(title, list(self._spec.preload), self._libraries)

    def _preload(self, _action: actions.Preload) -> None:
        self._processes.ask_nursery({"op": "preload", "modules": self._libraries})

    def _start_process(self, action: actions.StartProcess) -> None:
        if self._spec.mode is Mode.EXEC:
            # A program of the user's own starts when it is known what it is to be.
            event = events.ProcessWarm(at=time.monotonic(), id=action.id, pid=0)
            self._feed(event)
            return
        streams = self._console.open(action.id)
        if action.origin.value == "fork":
            device = action.seat if self._spec.spare_context else None
            self._processes.fork(action.id, streams, f"holdfast: spare of {self._spec.name}", device)
        else:
            self._processes.start_cold(action.id, streams)

    def _assign(self, action: actions.Assign) -> None:
        spec = self._spec
        folder = self._records.attempt_folder(action.incarnation, spec.terms.world)
        environment = contract.worker_environment(
            spec, action.rank, action.incarnation, action.restarts, action.port, agent_store=action.agent_store
        )
        environment["TORCHELASTIC_ERROR_FILE"] = os.path.join(folder, str(action.rank), "error.json") if folder else ""
        style = styles.styles(spec, self._output, action.rank, folder)
        if spec.mode is Mode.EXEC:
            streams = self._console.open(action.id)
            self._console.name(action.id, action.rank, action.incarnation, style)
            command = [spec.script, *contract.worker_arguments(spec, action.rank)]
            self._processes.start_program(action.id, command, streams, self._environment | environment)
            return
        self._console.name(action.id, action.rank, action.incarnation, style)
        self._processes.tell(
            action.id,
            {
                "op": "work",
                "mode": spec.mode.value,
                "script": spec.script,
                "arguments": contract.worker_arguments(spec, action.rank),
                "env": environment,
                "title": self._title(action.rank, action.incarnation),
                "label_offset": self._label_offset,
                "numa": spec.numa_binding,
                "identity": self._identities.get(action.rank, {}),
                "learn": action.learn and spec.learn,
            },
        )
        if action.incarnation > 1 and action.rank == 0:
            self._loop.run_in_executor(None, self._compare_sources)

    def _title(self, rank: Rank, incarnation: Incarnation) -> str:
        spec = self._spec
        script = " ".join([spec.script, *spec.arguments])
        return f"holdfast: {spec.name} {spec.role} rank {rank}/{spec.terms.world} (incarnation {incarnation}) {script}"

    def _compare_sources(self) -> None:
        changed = self._sources.changed()
        if changed:
            event = events.SourcesChanged(at=time.monotonic(), files=changed)
            self._loop.call_soon_threadsafe(self._feed, event)

    def _open_store(self, action: actions.OpenStore) -> None:
        if self._port_held is not None:
            self._port_held.close()
            self._port_held = None
        if action.keeper is None:
            self._hold_port(action.incarnation)
            return
        self._processes.tell(
            action.keeper,
            {
                "op": "store",
                "incarnation": action.incarnation,
                "host": self._spec.master_addr,
                "port": self._spec.master_port or self.state.store.last_port or 0,
                "title": f"holdfast: store of {self._spec.name}",
            },
        )

    def _store_answered(self, handle: Handle, message: wire.Message, now: float) -> None:
        if handle.lost or handle.unwanted:
            return
        incarnation = Incarnation(message["incarnation"])
        if "error" in message:
            self._feed(events.StoreFailed(at=now, incarnation=incarnation, reason=message["error"]))
        else:
            self._feed(events.StoreOpen(at=now, incarnation=incarnation, port=message["port"]))

    def _hold_port(self, incarnation: Incarnation) -> None:
        """Find a port on which rank 0 can serve the store, and keep it from others until rank 0 listens on it.

        A socket that is bound and does not listen does that: rank 0 may bind beside it, nobody is given it by chance.
        """
        if self.state.store.incarnation != incarnation or self.state.phase is Phase.OVER:
            return
        wanted = self._spec.master_port
        try:
            self._port_held = reservation.hold(wanted)
        except OSError as error:
            if incarnation > 1:  # the last rank 0 may still be giving its memory back
                self._loop.call_later(_RETRY_PORT_SECONDS, self._hold_port, incarnation)
                return
            reason = reservation.trouble(wanted, error)
            failed = events.StoreFailed(at=time.monotonic(), incarnation=incarnation, reason=reason)
            self._loop.call_soon(self._feed, failed)
            return
        port = self._port_held.getsockname()[1]
        opened = events.StoreOpen(at=time.monotonic(), incarnation=incarnation, port=port)
        self._loop.call_soon(self._feed, opened)

    def _terminate(self, action: actions.Terminate) -> None:
        for id in action.ids:
            self._processes.send_signal(id, action.signal)

    def _kill(self, action: actions.Kill) -> None:
        for id in action.ids:
            self._processes.kill(id)

    def _set_timer(self, action: actions.SetTimer) -> None:
        self._cancel_timer(actions.CancelTimer(timer=action.timer))
        self._timers[action.timer] = self._loop.call_later(action.seconds, self._timer_fired, action.timer)

    def _cancel_timer(self, action: actions.CancelTimer) -> None:
        if (timer := self._timers.pop(action.timer, None)) is not None:
            timer.cancel()

    def _timer_fired(self, timer: str) -> None:
        self._timers.pop(timer, None)
        self._feed(events.TimerFired(at=time.monotonic(), timer=timer))

    def _say(self, action: actions.Say) -> None:
        self._voice.say(action.level, action.text)

    def _complain(self, text: str) -> None:
        self._voice.say(Level.ERROR, text)

    def _close_incident(self, action: actions.CloseIncident) -> None:
        incident = self.state.incidents[str(action.number)]
        self._loop.run_in_executor(None, self._records.keep_incident, incident)

    def _finish(self, action: actions.Finish) -> None:
        for timer in self._timers.values():
            timer.cancel()
        if self._port_held is not None:
            self._port_held.close()
        stuck = self._processes.end(_END_SECONDS)
        if stuck:
            self._voice.say(Level.ERROR, f"processes that cannot be ended: {', '.join(map(str, stuck))}")
        self._console.finish(_OUTPUT_SECONDS)
        if not self._result.done():
            self._result.set_result(action.code)
