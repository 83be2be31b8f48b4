"""What pages say must exist: links, headings, functions, commands. And how they say it: one word for each idea."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from holdfast.cli import main as top
from tests.meta.conftest import ROOT, fences, prose, tool

_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
_NAME = re.compile(r"`([A-Za-z_]\w*)`")
_STAND_INS = {"R": "0", "N": "1", "K": "1"}
# What DESIGN's words replace, where English has no other use for it in these pages.
_SYNONYMS = re.compile(
    r"\b(zygote|standby|daemon|blacklist\w*|culprit|root cause|outage|chaos|audit log|membership|replicas?)\b",
    re.IGNORECASE,
)
_SOMEBODYS = re.compile(r"(?<![\w.])/(?:tmp|home|work|Users|root)/")
_FIELDS = ("Context", "Decision", "Rejected alternative", "Consequence", "Revisit when")


def anchors(page: Path) -> set[str]:
    """Anchors of headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere(page):
    for text, target in _LINK.findall(prose(page)):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"[{text}]({target})"
        assert there.is_relative_to(ROOT), f"[{text}]({target})"
        if anchor:
            assert anchor in anchors(there), f"[{text}]({target})"


def test_linked_names_are_defined_where_the_link_says(page):
    for text, target in _LINK.findall(prose(page)):
        name = _NAME.fullmatch(text)
        if name and target.endswith(".py"):
            source = (page.parent / target).read_text(encoding="utf-8")
            assert re.search(rf"^\s*(?:async )?(?:def|class) {name[1]}\b", source, re.MULTILINE), f"{text} in {target}"


def test_commands_in_examples_are_understood(page):
    for line in "".join(fences(page, "sh")).splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] != ["holdfast"] or "..." in words:
            continue
        command = top.find(words[1])
        parser = top.command_parser(command, top.load(command))
        parser.parse_args([_STAND_INS.get(word, word) for word in words[2:]])


def test_pages_use_the_words_of_the_glossary(page):
    assert not _SYNONYMS.findall(prose(page))


def test_pages_name_no_machine_of_ours(page):
    assert not _SOMEBODYS.findall(page.read_text(encoding="utf-8"))


def test_every_page_is_reached_from_the_index():
    index = ROOT / "docs" / "README.md"
    seen: set[Path] = set()
    waiting = [index, ROOT / "README.md"]
    while waiting:
        here = waiting.pop()
        seen.add(here)
        found = {(here.parent / target.partition("#")[0]).resolve() for _, target in _LINK.findall(prose(here))}
        waiting += [path for path in found if path.suffix == ".md" and path.exists() and path not in seen]
    assert not set((ROOT / "docs").rglob("*.md")) - seen - {index}


@pytest.mark.parametrize(
    "decision", sorted((ROOT / "docs" / "decisions").glob("0*.md")), ids=lambda path: path.stem[:4]
)
def test_a_decision_has_its_five_fields(decision):
    text = decision.read_text(encoding="utf-8")
    assert text.startswith(f"# {decision.stem[:4]} ")
    places = [text.find(f"**{field}") for field in _FIELDS]
    assert -1 not in places
    assert places == sorted(places)
    assert decision.name in (decision.parent / "README.md").read_text(encoding="utf-8")


def test_the_code_refers_to_pages_that_exist():
    for source in (ROOT / "src").rglob("*.py"):
        for name in re.findall(r"docs/[\w/.-]*\w", source.read_text(encoding="utf-8")):
            assert (ROOT / name).exists() or list(ROOT.glob(f"{name}*")), f"{name} in {source.name}"


def test_the_readme_leads_with_commands_that_the_makefile_has():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    found = re.findall(r"^make (\w+)", readme, re.MULTILINE)
    assert found[:2] == ["demo", "test"]
    assert all(re.search(rf"^{name}:", makefile, re.MULTILINE) for name in found)


@pytest.mark.parametrize("name", ["bench", "memory"])
def test_measured_numbers_have_their_place(name):
    readme = tool("readme")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    filled = readme.filled(text, name, "measured")
    assert f"<!-- {name}:start -->\nmeasured\n<!-- {name}:end -->" in filled
    assert readme.filled(filled, name, "again").count("again") == text.count("again") + 1


def test_memory_rows_are_found_in_a_table_of_results():
    table = "| what | unit |\n| --- | --- |\n| job: nursery, RSS | MB |\n| job: nursery, PSS | MB |\n| else | s |"
    assert tool("readme").memory_rows(table).splitlines() == table.splitlines()[:4]
    assert tool("readme").memory_rows("nothing") == "Not measured yet."
