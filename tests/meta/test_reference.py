"""The reference is what the code says, and leaves nothing out."""

from __future__ import annotations

import re
from typing import get_args

import msgspec
import pytest

from holdfast.cli import main as top
from holdfast.cli.flags import DELIBERATE_DIFFERENCES, all_flags
from holdfast.core import budgets
from holdfast.model import errors
from holdfast.model.actions import AnyAction
from holdfast.model.events import AnyEvent
from holdfast.model.spec import Limits, Terms
from tests.meta.conftest import ROOT, tool

REFERENCE = ROOT / "docs" / "reference"
_READ = re.compile(r"""environ(?:ment)?(?:\.get\(|\[)\s*"([A-Z_]+)\"""")
_IN_THE_DEMO_ONLY = ROOT / "src" / "holdfast" / "demo"


def text(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def test_the_pages_are_what_the_code_says(capsys):
    stale = tool("reference").main(["--check"])
    assert not stale, f"run `python tools/reference.py`\n{capsys.readouterr().out}"


def test_no_page_is_written_by_hand():
    assert {path.name for path in REFERENCE.glob("*.md")} == {path.name for path in tool("reference").pages()}


@pytest.mark.parametrize("command", top.COMMANDS, ids=lambda command: command.name)
def test_every_command_has_a_section(command):
    assert f"\n## holdfast {command.name}\n" in text("cli.md")


def test_every_flag_of_run_and_every_difference_is_there():
    page = text("cli.md")
    for flag in all_flags():
        assert f"`--{flag.dest.replace('_', '-')}" in page
    for difference in DELIBERATE_DIFFERENCES:
        assert difference.why.replace("|", "\\|") in page


@pytest.mark.parametrize("kind", [*get_args(AnyEvent), *get_args(AnyAction)], ids=lambda kind: kind.__name__)
def test_every_event_and_action_has_a_section_with_its_fields(kind):
    section = text("journal-events.md").partition(f"\n### {kind.__name__}\n")[2].partition("\n###")[0]
    own = [field.name for field in msgspec.structs.fields(kind) if field.name != "at"]
    assert all(f"| `{name}` |" in section for name in own)
    assert section or not own


@pytest.mark.parametrize("struct", [Limits, Terms], ids=lambda struct: struct.__name__)
def test_every_limit_and_term_is_there(struct):
    page = text("limits.md")
    assert all(f"| `{name}` |" in page for name in struct.__struct_fields__ if name != "limits")


def test_every_exit_code_is_there():
    page = text("exit-codes.md")
    kinds = [errors.HoldfastError, *errors.HoldfastError.__subclasses__()]
    codes = {0, 130, 143, budgets.EXIT_USER, budgets.EXIT_INFRASTRUCTURE, budgets.EXIT_NODE}
    codes |= {kind.status for kind in kinds} | {top.STATUS_INTERRUPTED, top.STATUS_BROKEN_PIPE}
    assert all(f"| {code} |" in page for code in codes)


def test_every_variable_that_is_read_is_there():
    page = text("environment.md")
    for source in (ROOT / "src" / "holdfast").rglob("*.py"):
        if _IN_THE_DEMO_ONLY not in source.parents:
            for name in _READ.findall(source.read_text(encoding="utf-8")):
                assert f"`{name}`" in page, f"{name}, read in {source.name}"
