"""Our table of flags against torchrun's own parser: it cannot drift."""

from __future__ import annotations

import argparse

import pytest
from torch.distributed.run import get_args_parser

from holdfast.cli import flags
from holdfast.model.errors import UsageError

OWN = {flag.dest for flag in flags.OWN_FLAGS}
DIFFERENT_DEFAULTS = {
    difference.flag.lstrip("-").replace("-", "_"): difference
    for difference in flags.DELIBERATE_DIFFERENCES
    if difference.differs_in_default
}


def actions(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return {action.dest: action for action in parser._actions}


@pytest.fixture
def no_variables(monkeypatch):
    """torchrun's parser reads the process's environment."""
    for action in get_args_parser()._actions:
        monkeypatch.delenv(f"PET_{action.dest.upper()}", raising=False)
    return monkeypatch


@pytest.fixture
def theirs(no_variables):
    return get_args_parser()


def ours(**environ):
    return flags.run_parser(environ=environ)


def test_every_flag_of_torchrun_is_here_under_all_its_names(theirs):
    mine = actions(ours())
    for dest, action in actions(theirs).items():
        assert mine[dest].option_strings == action.option_strings
        assert mine[dest].nargs == action.nargs


def test_nothing_is_here_that_is_neither_torchruns_nor_ours(theirs):
    assert set(actions(ours())) - set(actions(theirs)) == OWN


def test_choices_are_torchruns(theirs):
    for dest, action in actions(theirs).items():
        assert list(actions(ours())[dest].choices or []) == list(action.choices or [])


def test_defaults_are_torchruns_except_where_we_say_so(theirs):
    mine = vars(ours().parse_args(["train.py"]))
    for dest, default in vars(theirs.parse_args(["train.py"])).items():
        if dest in DIFFERENT_DEFAULTS:
            assert (str(default), mine[dest]) == (DIFFERENT_DEFAULTS[dest].torchrun, None)
        else:
            assert mine[dest] == default, dest


def test_every_difference_names_a_reason():
    for difference in flags.DELIBERATE_DIFFERENCES:
        assert difference.torchrun and difference.holdfast and difference.why.endswith(".")


VALUES = {int: "3", float: "0.5"}


def a_value(action):
    return next(iter(action.choices)) if action.choices else VALUES.get(action.type, "a,b,,c")


def test_values_are_read_as_torchrun_reads_them(theirs):
    for dest, action in actions(theirs).items():
        if not action.option_strings or dest in ("help", "print_completion"):
            continue
        for name in action.option_strings:
            words = [name] if action.nargs == 0 else [name, a_value(action)]
            line = [*words, "train.py", "--lr", "1"]
            mine = ours().parse_args(line)
            expected = theirs.parse_args(line)
            assert getattr(mine, dest) == getattr(expected, dest)
            assert mine.given == {dest}
            assert mine.training_script_args == expected.training_script_args


def test_every_variable_is_read_as_torchrun_reads_it(no_variables):
    bare = get_args_parser()
    for dest, action in actions(bare).items():
        if not action.option_strings or dest in ("help", "print_completion"):
            continue
        variable, text = f"PET_{dest.upper()}", "1" if action.nargs == 0 else a_value(action)
        no_variables.setenv(variable, text)
        expected = vars(get_args_parser().parse_args(["train.py"]))
        no_variables.delenv(variable)
        mine = ours(**{variable: text}).parse_args(["train.py"])
        if dest in ("logs_specs", "numa_binding"):  # torchrun reads no variable for these
            assert mine.given == frozenset()
        else:
            assert mine.given == {dest}
        for name, value in expected.items():
            if name not in DIFFERENT_DEFAULTS or name == dest:
                assert getattr(mine, name) == value, (variable, name)


def test_the_line_goes_before_the_variable():
    namespace = ours(PET_MAX_RESTARTS="7").parse_args(["--max-restarts", "2", "train.py"])
    assert namespace.max_restarts == 2


def test_a_switch_is_off_when_its_variable_is_zero():
    assert not ours(PET_STANDALONE="0").parse_args(["train.py"]).standalone


@pytest.mark.parametrize("variable", ["PET_STANDALONE", "PET_MAX_RESTARTS", "PET_START_METHOD"])
def test_a_bad_variable_is_reported_under_its_own_name(variable):
    with pytest.raises(UsageError) as caught:
        ours(**{variable: "yes please"})
    assert caught.value.where == variable


def prefixes(parser):
    names = {name for action in parser._actions for name in action.option_strings if name.startswith("--")}
    return sorted({name[:end] for name in names for end in range(3, len(name) + 1)})


def meaning(parser, prefix):
    """What torchrun's parser takes a prefix for; None if it calls it ambiguous between different flags."""
    exact = parser._option_string_actions.get(prefix)
    if exact is not None:
        return exact.dest
    matches = {action.dest for name, action in parser._option_string_actions.items() if name.startswith(prefix)}
    return matches.pop() if len(matches) == 1 else None


def test_every_unambiguous_prefix_of_torchruns_flags_means_the_same_here(theirs):
    parser = ours()
    checked = 0
    for prefix in prefixes(theirs):
        expected = meaning(theirs, prefix)
        if expected in (None, "help", "print_completion"):
            continue
        action = actions(theirs)[expected]
        words = [prefix] if action.nargs == 0 else [prefix, a_value(action)]
        assert parser.parse_args([*words, "train.py"]).given == {expected}, prefix
        with_equals = [prefix] if action.nargs == 0 else [f"{prefix}={a_value(action)}"]
        assert parser.parse_args([*with_equals, "train.py"]).given == {expected}, prefix
        checked += 1
    assert checked > 200


def test_what_torchruns_parser_accepts_ours_accepts(theirs, capsys):
    """The same prefixes, put to torchrun's parser itself instead of to our idea of it."""
    parser = ours()
    for prefix in prefixes(theirs):
        for words in ([prefix], [prefix, "3"], [prefix, "node"], [prefix, "spawn"]):
            try:
                expected = vars(theirs.parse_args([*words, "train.py"]))
            except SystemExit:
                continue
            if expected["print_completion"]:
                continue
            mine = vars(parser.parse_args([*words, "train.py"]))
            assert {k: v for k, v in expected.items() if k not in DIFFERENT_DEFAULTS} == {
                k: mine[k] for k in expected if k not in DIFFERENT_DEFAULTS
            }, words
    capsys.readouterr()


def test_flags_of_our_own_can_be_abbreviated_where_torchrun_has_nothing():
    namespace = ours().parse_args(["--dry", "--bud", "3", "--allow", "train.py"])
    assert namespace.given == {"dry_run", "budget", "allow_drills"}


def test_no_flag_of_our_own_is_the_beginning_of_one_of_torchruns(theirs):
    for flag in flags.OWN_FLAGS:
        for name in flag.names.split():
            assert not [its for its in theirs._option_string_actions if its.startswith(name)]


@pytest.mark.parametrize("words", [["--r", "3"], ["--no"], ["--rdzv", "x"]])
def test_an_ambiguous_prefix_stays_a_usage_error(words):
    with pytest.raises(UsageError, match="ambiguous"):
        ours().parse_args([*words, "train.py"])


def test_arguments_of_the_script_are_left_alone():
    namespace = ours().parse_args(["train.py", "--max-restarts", "9", "--json", "--", "-x"])
    assert namespace.training_script_args == ["--max-restarts", "9", "--json", "--", "-x"]
    assert namespace.given == frozenset()


def test_an_unknown_flag_is_told_its_nearest():
    with pytest.raises(UsageError) as caught:
        ours().parse_args(["--max-restrats", "3", "train.py"])
    assert "--max-restarts" in caught.value.remedy


def test_help_is_complete_and_in_our_own_words(theirs):
    their_sentences = {action.help for action in theirs._actions}
    for flag in flags.all_flags():
        assert flag.help and flag.help not in their_sentences
    assert "%" not in ours().format_help().replace("%%", "")
