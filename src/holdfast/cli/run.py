"""`holdfast run`: a training job on this machine, kept running.

Server and agent live in this process; there is nothing else to start.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
import time

from holdfast.adapters.home import Home, new_job_id
from holdfast.adapters.joblogs import LogWriter
from holdfast.adapters.sqlite_journal import SqliteJournal
from holdfast.agent import warden
from holdfast.agent.agent import Agent
from holdfast.agent.console import Console
from holdfast.agent.records import Records
from holdfast.agent.voice import Voice
from holdfast.cli import dryrun, facts, flags, plan
from holdfast.core.verdicts import first_cause
from holdfast.model.actions import Level
from holdfast.model.state import JobState, Status
from holdfast.worker.titles import set_title


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags.add_run_arguments(parser)


def main(namespace: argparse.Namespace) -> int:
    job_id = new_job_id(time.time(), os.urandom(2))
    planned = plan.make_plan(namespace, os.environ, facts.gather(namespace, os.environ), job_id)
    if planned.dry_run:
        dryrun.print_plan(planned)
        return 0
    return _run(planned)


def _run(planned: plan.Plan) -> int:
    spec = planned.spec
    guard = warden.post(spec.job_id, set_title)  # first: it is forked, and nothing here may have threads yet
    set_title(f"holdfast: agent of {spec.name}")
    home = Home.find(os.environ)
    folder = home.job(spec.job_id)
    journal = SqliteJournal.create(folder.journal, spec, created=time.time())
    records = Records(folder, journal, LogWriter(folder.logs), planned.output.log_dir, spec.run_id)
    loop = asyncio.new_event_loop()
    console = Console(loop, records, ranks=spec.terms.world)
    voice = Voice(console.say, as_json=planned.json)
    for notice in (*planned.notices, *folder.health.notes):
        voice.once(Level.WARNING, notice)
    agent = Agent(
        loop,
        spec,
        planned.output,
        records,
        voice,
        console,
        keeps_terminal=spec.terms.world == 1 and os.isatty(0),
        spared_pid=guard.pid,
    )
    try:
        code = agent.run()
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())  # the last incident may still be being written
        loop.close()
        records.close()
        guard.dismiss()
    _sum_up(agent.state, planned, Voice(_print, as_json=planned.json))
    home.prune()
    return code


def _sum_up(state: JobState, planned: plan.Plan, voice: Voice) -> None:
    """The last words: what, where, why, what next; the traceback of the first cause at the very end."""
    spec = planned.spec
    if planned.json:
        voice.document(
            {
                "job": spec.job_id,
                "status": state.status.value,
                "exit_code": state.exit_code,
                "reason": state.reason,
                "incarnations": state.incarnation,
                "incidents": len(state.incidents),
            }
        )
        return
    if state.status is Status.COMPLETED:
        if state.incidents:
            voice.say(Level.INFO, f"{spec.name} completed after {_incidents(state)}: holdfast goodput {spec.job_id}")
        return
    level = Level.WARNING if state.status is Status.STOPPED else Level.ERROR
    voice.say(level, f"{spec.name} {state.status.value.lower()} in incarnation {state.incarnation}: {state.reason}")
    if not state.incidents:
        return
    last = state.incidents[str(len(state.incidents))]
    voice.say(level, f"more: holdfast incidents explain {spec.job_id} {last.number}")
    if last.casualties and last.outcome == "failed":
        cause = first_cause(last.casualties, shell_codes=spec.terms.shell_codes)
        if cause.raised is not None and spec.terms.world > 1:
            voice.say(level, f"the first cause, on rank {cause.rank} (pid {cause.pid}) of {socket.gethostname()}:")
            _print(cause.raised.traceback.rstrip())


def _incidents(state: JobState) -> str:
    count = len(state.incidents)
    return f"{count} incident" if count == 1 else f"{count} incidents"


def _print(text: str) -> None:
    print(text, file=sys.stderr)
