"""The argument parser of every command: torchrun's abbreviations survive beside flags of our own.

argparse matches abbreviations against all option strings alike, so one more flag could make a launch line ambiguous
that torchrun accepts. Here flags of our own give way: they are found by abbreviation only where no other flag is.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from holdfast.model.errors import UsageError


class Parser(argparse.ArgumentParser):
    """Raises `UsageError` in place of leaving the process."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.HelpFormatter)
        super().__init__(*arguments, **options)

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        matches: list[Any] = super()._get_option_tuples(option_string)  # type: ignore[misc]
        matches = [match for match in matches if not is_own(match[0])] or matches
        # Dashed and underscored spellings are one flag; Python 3.11 would call a prefix of both ambiguous.
        return list({id(match[0]): match for match in reversed(matches)}.values())[::-1]

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, where=self.prog, remedy=self._advice(message))

    def _advice(self, message: str) -> str:
        known = [option for option in self._option_string_actions if option.startswith("--")]
        unknown = re.match(r"unrecognized arguments: (--[^\s=]+)", message)
        near = difflib.get_close_matches(unknown[1], known, n=1) if unknown else []
        return (f"Did you mean {near[0]}? " if near else "") + f"See `{self.prog} --help`."


def mark_own(action: argparse.Action) -> None:
    """Declare a flag to be ours and not torchrun's."""
    action.holdfast_own = True  # type: ignore[attr-defined]


def is_own(action: argparse.Action) -> bool:
    return getattr(action, "holdfast_own", False)
