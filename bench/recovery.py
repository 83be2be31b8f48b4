"""How long a job stands still after `kill -9`, under Holdfast, a bare loop and torchrun; and what Holdfast costs.

    python bench/recovery.py                    # everything: about an hour, most of it torchrun's
    python bench/recovery.py --rows 'holdfast-*,bare-*'
    python bench/recovery.py --quick            # is it in working order? The numbers mean nothing
    python bench/recovery.py --markdown         # the table of the last run, for a README

The script is bench/train_ddp.py, unmodified DDP that checkpoints every step. Each finished session is kept in
bench/results/NAME.json at once, so an interrupted run goes on where it was; what was measured with other code or on
another machine is measured again. The exit code says nothing about the numbers: a benchmark reports.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from harness import machine, report
from harness.results import Results, current, load
from harness.rows import CONTEXT_FLAGS, QUICK, Row, Size, every_row

INTERRUPTED = 130
RESULTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "results")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    size = QUICK if options.quick else Size()
    if options.kills:
        size = replace(size, sessions=1, kills=options.kills)
    name = options.name or ("quick" if options.quick else "recovery")
    path = os.path.join(RESULTS, f"{name}.json")
    if options.markdown:
        print(report.markdown(current(load(path))))
        return 0
    rows = every_row(size, options.seed)
    if options.list:
        print("\n".join(f"{row.name:34} {row.title}" for row in rows))
        return 0
    return _run(rows, options, path)


def _run(rows: list[Row], options: argparse.Namespace, path: str) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    described = machine.describe()
    results = Results(path, described, machine.code())
    patterns = [pattern.strip() for pattern in options.rows.split(",")]
    chosen = [row for row in rows if any(fnmatch.fnmatchcase(row.name, pattern) for pattern in patterns)]
    results.data["planned"] = [row.described() for row in rows]
    results.data["why_not"] = _impossible(rows, described)
    code = 0
    try:
        for row, session in _turns([row for row in chosen if row.name not in results.data["why_not"]]):
            if session == 0:
                if options.again:
                    results.forget(row.name)
                results.begin(row.name, row.parameters)
            if not results.has(row.name, session):
                _measure(row, session, results)
    except KeyboardInterrupt:
        print("interrupted: what was finished is kept, the same command goes on from there", file=sys.stderr)
        code = INTERRUPTED
    results.save()
    print(report.text(current(results.data)))
    print(f"\n{path}")
    return code


def _impossible(rows: list[Row], described: dict) -> dict[str, str]:
    """Rows that cannot be measured here, and why."""
    if not described["cuda"]:
        return {row.name: "no GPU here" for row in rows if row.needs_cuda}
    unknown = [flag for flag in CONTEXT_FLAGS if flag not in machine.help_of_run()]
    return {row.name: f"no {unknown[0]} in this Holdfast" for row in rows if unknown and "context" in row.name}


def _turns(rows: list[Row]) -> Iterator[tuple[Row, int]]:
    """Group by group; in a group every row's first session, then their second in the opposite order, and so on."""
    for _group, members in groupby(rows, key=lambda row: row.group):
        together = list(members)
        for session in range(max(row.sessions for row in together)):
            ordered = together if session % 2 == 0 else together[::-1]
            yield from ((row, session) for row in ordered if session < row.sessions)


def _measure(row: Row, session: int, results: Results) -> None:
    of = f" {session + 1}/{row.sessions}" if row.sessions > 1 else ""
    begun = time.monotonic()
    moment = machine.moment()
    measured = {**moment, **row.measure(session, results)}
    results.keep(row.name, session, measured)
    taken = time.monotonic() - begun
    print(f"{row.name}{of}: {_summary(measured)} ({taken:.0f} s, load {moment['load']})", file=sys.stderr, flush=True)


def _summary(measured: dict) -> str:
    if "kills" in measured:
        seconds = [f"{k['seconds']:.3f}" if k["seconds"] else f"failed: {k['why']}" for k in measured["kills"]]
        return ", ".join(seconds)
    if "seconds" in measured:
        return f"{measured['seconds']:.3f} s" if measured["seconds"] else "failed"
    return "done"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="*", help="patterns of row names, separated by commas; default: all")
    parser.add_argument("--again", action="store_true", help="measure the chosen rows even if they are there")
    parser.add_argument("--quick", action="store_true", help="two kills or fewer a row, into results/quick.json")
    parser.add_argument("--kills", type=int, help="one session of this many kills for Holdfast and the bare loop")
    parser.add_argument("--seed", type=int, default=1, help="for which rank is killed and when in its step")
    parser.add_argument("--name", help="of the results file")
    parser.add_argument("--markdown", action="store_true", help="print the table of the last run and measure nothing")
    parser.add_argument("--list", action="store_true", help="print the rows and measure nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
