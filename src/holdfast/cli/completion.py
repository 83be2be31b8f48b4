"""`holdfast completion SHELL`: a script that completes every command and flag, made from the parsers themselves."""

from __future__ import annotations

import argparse
import contextlib

from holdfast.cli import main as top
from holdfast.cli.flags import COMPLETION_SHELLS
from holdfast.cli.parser import Parser
from holdfast.model.errors import Unsupported

_FILES = ("training_script", "file", "path", "log_dir")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=COMPLETION_SHELLS, help="the shell that will read it")


def main(namespace: argparse.Namespace) -> int:
    print(script(namespace.shell))
    return 0


def script(shell: str) -> str:
    import shtab

    parser = whole_parser()
    for action in _actions(parser):
        if action.dest in _FILES and not action.choices:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return str(shtab.complete(parser, shell=shell))


def whole_parser() -> argparse.ArgumentParser:
    """One parser over all commands that this version has."""
    parser = Parser(prog="holdfast", description="Keeps distributed training running.")
    parser.add_argument("-V", "--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command")
    for command in top.COMMANDS:
        with contextlib.suppress(Unsupported):
            module = top.load(command)
            module.add_arguments(commands.add_parser(command.name, help=command.summary))
    return parser


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    found: list[argparse.Action] = []
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way to list them
        found.append(action)
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for inner in action.choices.values():
                found.extend(_actions(inner))
    return found
