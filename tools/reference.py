"""Writes docs/reference from the code it describes.

    python tools/reference.py            # write the pages
    python tools/reference.py --check    # 1 if a page is not what the code says

What a name means is taken from its own docstring, comment or help text. Where the code has no words for a thing, they
stand in a table here that must be complete: a variable or a code without an entry is an error.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import inspect
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, get_args

from holdfast.agent import contract
from holdfast.cli import facts, flags, plan
from holdfast.cli import main as top
from holdfast.core import budgets, job
from holdfast.model import actions, errors, events, spec
from holdfast.model.ids import Incarnation, Rank

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"
NOTE = "<!-- Written by tools/reference.py from the code. Change the code, then run it again. -->"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a page is out of date")
    options = parser.parse_args(arguments)
    stale = [path for path, text in pages().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if options.check:
        for path in stale:
            print("\n".join(_difference(path)))
        return 1 if stale else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in stale:
        path.write_text(pages()[path], encoding="utf-8")
        print(path.relative_to(ROOT))
    return 0


def pages() -> dict[Path, str]:
    made = {
        "cli.md": cli_page(),
        "exit-codes.md": exit_codes_page(),
        "environment.md": environment_page(),
        "journal-events.md": journal_page(),
        "limits.md": limits_page(),
    }
    return {FOLDER / name: f"{NOTE}\n\n{text.rstrip()}\n" for name, text in made.items()}


def _difference(path: Path) -> Iterator[str]:
    old = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    new = pages()[path].splitlines()
    name = str(path.relative_to(ROOT))
    yield from list(difflib.unified_diff(old, new, name, f"{name} as the code has it", lineterm="", n=1))[:60]


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(header), *(list(row) for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def code(text: object) -> str:
    return f"`{text}`"


# -- the command line


def cli_page() -> str:
    parts = [
        "# Commands",
        (
            "`holdfast --help` lists the commands, `holdfast COMMAND --help` what each takes. A job is named by its "
            "id, by the beginning of it, by its name, or as `last`."
        ),
        table(("command", "what it does"), ((f"[{c.name}](#holdfast-{c.name})", c.summary) for c in top.COMMANDS)),
    ]
    for command in top.COMMANDS:
        parts += _run_section(command) if command.name == "run" else _command_section(command)
    return "\n\n".join(parts)


def _run_section(command: top.Command) -> list[str]:
    parts = [
        f"## holdfast {command.name}",
        code("holdfast run [FLAGS] SCRIPT [ARGUMENTS]"),
        (
            "Every torchrun flag is accepted with dashes or underscores and may be abbreviated as in torchrun. Where a "
            "variable is named it sets the flag's default; a flag on the command line wins. Flags of a switch take no "
            "value, their variable takes 0 or 1."
        ),
    ]
    for title, group in flags.TORCHRUN_FLAGS:
        parts += [f"### {title}", table(("flag", "variable", "meaning"), map(_flag_row, group))]
    parts += [
        "### Holdfast's own",
        table(("flag", "meaning"), ((_flag_name(flag), flag.help) for flag in flags.OWN_FLAGS)),
        "### Where `holdfast run` differs from torchrun",
        "All differences are meant. Those in defaults are compared with torch's own parser by a test.",
        table(
            ("what", "torchrun", "holdfast run", "why"),
            ((_named(d.flag), d.torchrun, d.holdfast, d.why) for d in flags.DELIBERATE_DIFFERENCES),
        ),
    ]
    return parts


def _named(text: str) -> str:
    return ", ".join(code(part) if part.startswith("--") else part for part in text.split(", "))


def _flag_name(flag: flags.Flag) -> str:
    names = [name for name in flag.names.split() if "_" not in name]
    value = "" if flag.switch else "|".join(flag.choices) if flag.choices else flag.metavar or flag.dest.upper()
    return ", ".join(code(f"{name} {value}".strip()) for name in names)


def _flag_row(flag: flags.Flag) -> tuple[str, str, str]:
    return _flag_name(flag), code(f"PET_{flag.dest.upper()}") if flag.variable else "", flag.help


def _command_section(command: top.Command) -> list[str]:
    parser = argparse.ArgumentParser(prog=f"holdfast {command.name}", add_help=False)
    top.load(command).add_arguments(parser)
    return [f"## holdfast {command.name}", f"{command.summary[0].upper()}{command.summary[1:]}.", *_arguments(parser)]


def _arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    rows = []
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way to list them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            summaries = {choice.dest: choice.help or "" for choice in action._choices_actions}  # noqa: SLF001
            for name, inner in action.choices.items():
                yield f"### {parser.prog} {name}"
                yield f"{summaries[name][0].upper()}{summaries[name][1:]}."
                yield from _arguments(inner)
        elif not isinstance(action, argparse._HelpAction):  # noqa: SLF001
            rows.append((_argument_name(action), action.help or ""))
    if rows:
        yield table(("argument", "meaning"), rows)


def _argument_name(action: argparse.Action) -> str:
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    if not action.option_strings:
        return code(f"[{value}]" if action.nargs == "?" else str(value))
    takes = "" if action.nargs == 0 else f" {value}"
    return ", ".join(code(f"{name}{takes}") for name in action.option_strings)


# -- exit codes


def exit_codes_page() -> str:
    base = job.EXIT_SIGNAL_BASE
    run = [
        (0, "Every rank finished. A crash on the way out after that is a warning."),
        (budgets.EXIT_USER, "The script failed: an exception or a non-zero exit that is final, or too many of them."),
        (errors.UsageError.status, "The command cannot mean anything, or not on this machine. Nothing was started."),
        (budgets.EXIT_INFRASTRUCTURE, "The infrastructure failed and no restart is left. Safe to schedule again."),
        (budgets.EXIT_NODE, "There is evidence against this node: schedule the job elsewhere."),
        (base + 1, "Stopped by SIGHUP."),
        (base + 2, "Stopped by SIGINT, which is Ctrl-C. The same after a second one."),
        (base + 3, "Stopped by SIGQUIT."),
        (base + 15, "Stopped by SIGTERM."),
    ]
    others = [
        (0, "Done."),
        (errors.HoldfastError.status, ("It could not be done. `doctor`: a check failed. `replay`: the journal and the "
         "agent's state disagree. `drill`: a fault had no effect. `demo`: a claim does not hold.")),
        (errors.UsageError.status, "The command cannot mean anything."),
        (errors.NotFound.status, "No such job, incident or record; or a drill was refused."),
        (top.STATUS_INTERRUPTED, "Interrupted."),
        (top.STATUS_BROKEN_PIPE, "Whoever read the output has left."),
    ]  # fmt: skip
    tree = inspect.getdoc(errors) or ""
    return "\n\n".join(
        [
            "# Exit codes",
            "## `holdfast run`",
            table(("code", "meaning"), ((str(number), text) for number, text in run)),
            (
                "The code follows from the verdict of the last incident; [survival](../concepts/survival.md) says how "
                "it is reached. 137 is never chosen by Holdfast: it means that the launcher itself was killed."
            ),
            "## Other commands",
            table(("code", "meaning"), ((str(number), text) for number, text in others)),
            "## Errors",
            "With `--json` an error is one document on stderr; `code` in it is stable.",
            f"```text\n{tree.partition(chr(10) * 2)[2].split(chr(10) * 2)[0]}\n```",
        ]
    )


# -- the environment

GIVEN = {
    "RANK": "the worker's number in this incarnation",
    "LOCAL_RANK": "the same on one node; always 0 with `--virtual-local-rank`",
    "GROUP_RANK": "the node's number: 0",
    "ROLE_RANK": "the same as `RANK`",
    "ROLE_NAME": "`--role`",
    "LOCAL_WORLD_SIZE": "workers on this node",
    "WORLD_SIZE": "workers of the job",
    "GROUP_WORLD_SIZE": "nodes: 1",
    "ROLE_WORLD_SIZE": "the same as `WORLD_SIZE`",
    "MASTER_ADDR": "where the store is",
    "MASTER_PORT": "its port, kept through incarnations where it can be",
    "TORCHELASTIC_RESTART_COUNT": "restarts of the whole job so far",
    "TORCHELASTIC_MAX_RESTARTS": "`--max-restarts`, or the budget's size",
    "TORCHELASTIC_RUN_ID": "`--rdzv-id`, or a fresh id",
    "TORCHELASTIC_USE_AGENT_STORE": "`True` if a keeper serves the store, `False` if rank 0 has to",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "`--signals-to-handle`",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1, unless the launcher has another value",
    "OMP_NUM_THREADS": "1 if there are several workers and the launcher has none",
    "WANDB_RUN_ID": "the job's id, so that a run goes on through incarnations; not if you set any of `WANDB_RUN_ID`, "
    "`WANDB_RESUME`, `WANDB_SWEEP_ID`. Ranks above 0 have `-RANK` appended",
    "WANDB_RESUME": "`allow`, together with `WANDB_RUN_ID`",
    "HOLDFAST_JOB_ID": "the job's id, the same in all incarnations. Whatever carries it is ended with the job",
    "HOLDFAST_JOB_NAME": "`--name`",
    "HOLDFAST_INCARNATION": "the incarnation's number, from 1",
}

READ = {
    "HOLDFAST_HOME": "where records are kept",
    "XDG_STATE_HOME": "without `HOLDFAST_HOME`: records are kept in `holdfast` under it; ignored if relative",
    "HOME": "without both: records are kept in `.local/state/holdfast` under it",
    "PYTHON_EXEC": "the interpreter of the workers, unless `--run-path` is given",
    "PET_*": "defaults of torchrun's flags, see [commands](cli.md#holdfast-run)",
    "OMP_NUM_THREADS": "passed on; without it several workers get 1",
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "the default of `--shutdown-timeout`",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1: rank 0 serves the store, as in torchrun",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "passed on; without it workers get 1",
    "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "the default of `--log-line-prefix-template`",
    "CUDA_VISIBLE_DEVICES": "counted for `--nproc-per-node gpu` and `auto`, divided with `--virtual-local-rank`",
    "HIP_VISIBLE_DEVICES": "likewise for ROCm with `--virtual-local-rank`",
    "WANDB_RUN_ID": "if it is set, Holdfast sets no identity for W&B",
    "WANDB_RESUME": "likewise",
    "WANDB_SWEEP_ID": "likewise",
    "PYTHONFAULTHANDLER": "0: workers do not enable `faulthandler`",
    "OPENBLAS_NUM_THREADS": "if it is set, the nursery leaves it alone while it imports numpy",
    "PATH": "where a program of `--no-python` is looked for",
    "PYTHONPATH": "where a module of `-m` is looked for",
    "NO_COLOR": "no colour on a terminal",
    "TERM": "`dumb`: no colour on a terminal",
}


def environment_page() -> str:
    variables = worker_variables()
    rows = [(code(name), code(variables[name]), GIVEN[name]) for name in GIVEN]
    if missing := set(variables) ^ set(GIVEN):
        raise SystemExit(f"tools/reference.py: GIVEN and the code differ in {', '.join(sorted(missing))}")
    return "\n\n".join(
        [
            "# Environment",
            "## What a worker finds",
            "Beside the launcher's own environment. The examples are rank 1 of 4 in incarnation 2, without any flag.",
            table(("variable", "example", "meaning"), rows),
            (
                "Also `TORCHELASTIC_ERROR_FILE`: the path of this rank's `error.json` under `--log-dir` or the job's "
                "own folder, empty if no folder can be made. With `--virtual-local-rank` also `CUDA_VISIBLE_DEVICES` "
                "(and `HIP_VISIBLE_DEVICES`): the one GPU of this worker. Constants that the script sets before it "
                "imports torch are set from the start, see [the nursery](../concepts/nursery.md)."
            ),
            "## What Holdfast reads",
            table(("variable", "meaning"), ((code(name), meaning) for name, meaning in READ.items())),
        ]
    )


def worker_variables() -> dict[str, str]:
    """What a plain job's worker gets, from the code that gives it."""
    machine = facts.MachineFacts(
        cpu_count=4,
        available_bytes=2**36,
        gpu_count=0,
        torch_installed=True,
        numpy_installed=True,
        hostname="host",
        is_tty=False,
        python="python",
        cwd="folder",
        script=facts.ScriptFacts(facts.ScriptKind.FILE, b"import torch"),
        run_id="RUN_ID",
    )
    namespace = flags.run_parser(environ={}).parse_args(["--nproc-per-node", "4", "train.py"])
    asked = plan.make_plan(namespace, {}, machine, "JOB_ID").spec
    given = contract.worker_environment(asked, Rank(1), Incarnation(2), 1, 40123, agent_store=asked.terms.keeper)
    return asked.environment | given


# -- events, actions and limits, from their source


class FieldText(NamedTuple):
    name: str
    type: str
    default: str
    comment: str


def fields_of(module: ModuleType, name: str) -> list[FieldText]:
    """The fields a class declares itself, with what its source says beside them."""
    source = inspect.getsource(module)
    lines = source.splitlines()
    found = []
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef) or node.name != name:
            continue
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                comment = lines[(item.end_lineno or item.lineno) - 1][item.end_col_offset :].partition("#")[2].strip()
                default = "" if item.value is None else ast.unparse(item.value)
                found.append(FieldText(item.target.id, ast.unparse(item.annotation), default, comment))
    return found


def journal_page() -> str:
    parts = [
        "# Events and actions",
        (
            "A journal holds one record per decision: `seq`, `at` (seconds of the agent's monotonic clock), `wall` "
            "(seconds since 1970), the `event`, the `delta` it made to the job's state, the `actions` that followed "
            "and the `reason`. `holdfast replay JOB --events` prints them. In JSON the kind of an event or action is "
            "its `type`."
        ),
        "## Events",
        _first_line(events).replace("Each carries the moment", "Each carries, as `at`, the moment"),
    ]
    for kind in get_args(events.AnyEvent):
        parts += _struct(events, kind)
    parts += ["## Actions", _first_line(actions)]
    for kind in get_args(actions.AnyAction):
        parts += _struct(actions, kind)
    return "\n\n".join(parts)


def _first_line(module: ModuleType) -> str:
    return (inspect.getdoc(module) or "").splitlines()[0]


def _struct(module: ModuleType, kind: type[Any]) -> Iterator[str]:
    yield f"### {kind.__name__}"
    if kind.__doc__:
        yield inspect.cleandoc(kind.__doc__)
    fields = fields_of(module, kind.__name__)
    if fields:
        yield table(
            ("field", "type", "note"),
            ((code(f.name), code(f.type), "; ".join(filter(None, [f.comment, _default(f)]))) for f in fields),
        )


def _default(field: FieldText) -> str:
    return f"default {code(field.default)}" if field.default else ""


def limits_page() -> str:
    rows = []
    for field in fields_of(spec, "Limits"):
        flag = {"grace_seconds": "`--grace`", "shutdown_seconds": "`--shutdown-timeout`"}.get(field.name, "")
        rows.append((code(field.name), field.default, flag, field.comment))
    terms = [
        (code(f.name), code(f.default) if f.default else "", f.comment)
        for f in fields_of(spec, "Terms")
        if f.name != "limits"
    ]
    return "\n\n".join(
        [
            "# Limits",
            (
                "Every wait is bounded. `holdfast run --dry-run` shows the values that hold for a job and where each "
                "comes from; they are kept with the job."
            ),
            table(("limit", "seconds", "set by", "what it bounds"), rows),
            "## Terms",
            "The terms under which a job is kept running.",
            table(("term", "default", "meaning"), terms),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
