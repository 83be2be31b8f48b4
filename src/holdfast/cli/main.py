"""The top of the command line: which command, in which module, and how errors leave the process.

A command's module is imported when it is called and not before, so that `holdfast --help` stays fast and a command
that cannot be imported hurts nobody else. Each has `add_arguments(parser)` and `main(namespace) -> int`.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.model.errors import HoldfastError, Unsupported, UsageError

if TYPE_CHECKING:
    from holdfast.cli.parser import Parser

STATUS_INTERRUPTED = 130
STATUS_BROKEN_PIPE = 141


class Command(NamedTuple):
    name: str
    module: str
    summary: str


COMMANDS: tuple[Command, ...] = (
    Command("run", "holdfast.cli.run", "run a training script as torchrun does, and keep it running"),
    Command("jobs", "holdfast.cli.jobs", "list jobs, show one, read its output"),
    Command("incidents", "holdfast.cli.incidents", "what went wrong, why, and what was done about it"),
    Command("goodput", "holdfast.cli.goodput", "how much of a job's time went into progress"),
    Command("replay", "holdfast.cli.replay", "a job's state, rebuilt from its journal and checked"),
    Command("drill", "holdfast.cli.drill", "hurt a job on purpose, where it allows that"),
    Command("demo", "holdfast.cli.demo", "watch a training run survive kills"),
    Command("doctor", "holdfast.cli.doctor", "what works on this machine, each miss with its fix"),
    Command("env", "holdfast.cli.envdump", "a description of this machine for a bug report, secrets masked"),
    Command("completion", "holdfast.cli.completion", "print a completion script for your shell"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script. Never raises for what a user can do."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = _dispatch(words)
        sys.stdout.flush()
    except HoldfastError as error:
        _report(error, as_json="--json" in words)
        return error.status
    except KeyboardInterrupt:
        return STATUS_INTERRUPTED
    except BrokenPipeError:
        # Whoever read has left. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return STATUS_BROKEN_PIPE
    return status


def _dispatch(words: list[str]) -> int:
    first = words[0] if words else ""
    if first in ("-h", "--help", "help"):
        print(help_text())
        return 0
    if first in ("-V", "--version"):
        from holdfast import __version__

        print(f"holdfast {__version__}")
        return 0
    if not first:
        print(help_text(), file=sys.stderr)
        return UsageError.status
    command = find(first)
    module = load(command)
    parser = command_parser(command, module)
    if {"-h", "--help"} & set(words) and sys.stdout.isatty():
        from rich_argparse import RichHelpFormatter

        parser.formatter_class = RichHelpFormatter
    status: int = module.main(parser.parse_args(words[1:]))
    return status


def find(name: str) -> Command:
    for command in COMMANDS:
        if command.name == name:
            return command
    if name.startswith("-"):
        raise UsageError(
            f"{name!r} stands where a command is expected", where="holdfast", remedy="Flags follow the command."
        )
    raise UsageError(f"there is no command {name!r}", where="holdfast", remedy=_advice(name))


def _advice(name: str) -> str:
    import difflib

    if name.endswith(".py") or os.path.isfile(name):
        return f"To run a script: holdfast run {name}"
    near = difflib.get_close_matches(name, [command.name for command in COMMANDS], n=1, cutoff=0.5)
    return (f"Did you mean `holdfast {near[0]}`? " if near else "") + "See `holdfast --help`."


def load(command: Command) -> ModuleType:
    try:
        return importlib.import_module(command.module)
    except ModuleNotFoundError as error:
        if error.name != command.module:
            raise
        raise Unsupported(
            f"`holdfast {command.name}` is not part of this version yet", remedy="See `holdfast --help`."
        ) from None


def command_parser(command: Command, module: Any) -> Parser:
    from holdfast.cli.parser import Parser

    parser = Parser(prog=f"holdfast {command.name}", description=_sentence(command.summary))
    module.add_arguments(parser)
    return parser


def help_text() -> str:
    width = max(len(command.name) for command in COMMANDS)
    lines = [f"  {command.name:<{width}}  {command.summary}" for command in COMMANDS]
    return "\n".join(
        [
            "usage: holdfast [--help] [--version] COMMAND ...",
            "",
            "Keeps distributed training running: `holdfast run` in place of `torchrun`.",
            "",
            *lines,
            "",
            "`holdfast COMMAND --help` tells more about each.",
        ]
    )


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def _report(error: HoldfastError, *, as_json: bool) -> None:
    if as_json:
        import json

        print(json.dumps({"error": error.document()}), file=sys.stderr)
    else:
        print(error if error.where.startswith("holdfast") else f"holdfast: {error}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
