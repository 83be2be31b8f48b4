# ruff: noqa: RUF001
"""The commands as a user calls them, through the real entry point, on a home with real journals and logs."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys

import pytest

from holdfast.adapters.home import Home
from holdfast.adapters.joblogs import LogWriter
from holdfast.adapters.sqlite_journal import SqliteJournal
from holdfast.cli.main import main
from tests.record.stories import WALL, Story, recovered_once, spec

SECOND = 1_000_000_000


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    return Home(tmp_path)


@pytest.fixture
def say(home, capsys):
    """A command: its exit status, what it printed, and what it printed as an error."""

    def say(*words):
        status = main(words)
        out, err = capsys.readouterr()
        return status, out, err

    return say


@pytest.fixture
def told(say):
    def told(*words):
        status, out, _ = say(*words, "--json")
        return json.loads(out) if out else status

    return told


def _keep(home, job_id, tell, name="digits"):
    folder = home.job(job_id)
    journal = SqliteJournal.create(folder.journal, spec(job_id, name), created=WALL)
    story = tell(journal)
    journal.close()
    return folder, story


@pytest.fixture
def finished(home):
    folder, story = _keep(home, "job-1", recovered_once)
    logs = LogWriter(folder.logs)
    for incarnation in (1, 2):
        for rank in range(2):
            text = f"loading\nrank {rank} life {incarnation}\n".encode()
            logs.write(rank, incarnation, "o", (1000 * incarnation) * SECOND, text)
    logs.write(1, 2, "e", 2001 * SECOND, b"WARNING: hm\nERROR: bad\n")
    logs.close()
    folder.write_incident(1, {"host": "node-a", "tails": {"1": ["last words"]}, "kernel": []})
    folder.release()
    return story


@pytest.fixture
def failed(home):
    def tell(journal):
        return Story(journal).muster().wait(1.0).raise_in(0).lose(0).lose(1)

    folder, story = _keep(home, "job-2", tell, "crashing")
    folder.release()
    return story


# -- jobs


def test_no_jobs_yet(say, told):
    assert say("jobs", "ls")[:2] == (
        0,
        f"no jobs in {os.environ['HOLDFAST_HOME']} yet; start one: holdfast run SCRIPT\n",
    )
    assert told("jobs", "ls")["jobs"] == []


def test_jobs_ls(finished, failed, say, told):
    status, out, _ = say("jobs", "ls")
    heading, newest, oldest = out.splitlines()
    assert status == 0
    assert heading.split()[:7] == ["ID", "NAME", "STATUS", "INC", "RESTARTS", "STEP", "AGE"]
    assert newest.split()[:5] == ["job-2", "crashing", "FAILED", "1", "0"]
    assert oldest.split()[:6] == ["job-1", "digits", "COMPLETED", "2", "1", "30"]
    assert oldest.endswith("rank 1 was killed by SIGKILL")
    document = told("jobs", "ls")
    assert document["schema"] == 1
    assert [job["status"] for job in document["jobs"]] == ["FAILED", "COMPLETED"]
    assert document["jobs"][0]["exit_code"] == 1


def test_jobs_show(finished, say, told):
    status, out, _ = say("jobs", "show", "job-1")
    assert status == 0
    assert "train.py --epochs 3" in out
    assert "recovered" in out
    assert "hush" not in out
    job = told("jobs", "show", "last")["job"]
    assert job["world"] == 2
    assert job["environment_names"] == ["SECRET"]
    assert "hush" not in json.dumps(job)


def test_a_job_whose_agent_died_is_lost(home, say):
    folder, _ = _keep(home, "job-3", lambda journal: Story(journal).muster())
    assert "RUNNING" in say("jobs", "ls")[1]
    folder.release()
    assert "LOST" in say("jobs", "ls")[1]


def test_a_job_without_a_journal_is_shown_all_the_same(home, say, told):
    home.job("job-9").release()
    status, out, _ = say("jobs", "show", "last")
    assert status == 0
    assert "LOST" in out
    assert "does not exist" in out
    assert "does not exist" in told("jobs", "ls")["jobs"][0]["trouble"]
    assert say("replay", "last")[0] == 1
    assert say("goodput", "last")[0] == 1


@pytest.mark.parametrize(
    "words",
    [
        ("jobs", "show", "job-7"),
        ("jobs", "logs", "job-7"),
        ("incidents", "ls", "job-7"),
        ("incidents", "show", "job-7", "1"),
        ("incidents", "show", "job-1", "2"),
        ("incidents", "explain", "9"),
        ("goodput", "job-7"),
        ("replay", "job-7"),
    ],
)
def test_what_does_not_exist_is_status_5(finished, say, words):
    status, out, err = say(*words)
    assert (status, out) == (5, "")
    assert err
    status, out, err = say(*words, "--json")
    assert status == 5
    assert json.loads(err)["error"]["code"] == "not_found"


@pytest.mark.parametrize(
    "words",
    [
        ("jobs",),
        ("jobs", "lss"),
        ("jobs", "show"),
        ("jobs", "logs", "job-1", "--rank", "3-1"),
        ("jobs", "logs", "job-1", "--grep", "("),
        ("jobs", "logs", "job-1", "--since", "yesterday"),
        ("jobs", "logs", "job-1", "--level", "loud"),
        ("incidents", "show", "job-1", "one"),
        ("replay", "job-1", "--to", "x"),
    ],
)
def test_what_means_nothing_is_status_2(finished, say, words):
    status, out, err = say(*words)
    assert (status, out) == (2, "")
    assert err


# -- logs


def test_logs_are_merged_folded_and_say_where_a_life_begins(finished, say):
    status, out, _ = say("jobs", "logs", "job-1")
    assert status == 0
    assert out.splitlines() == [
        "×2 ranks  loading",
        "r0        rank 0 life 1",
        "r1        rank 1 life 1",
        "── incarnation 2 ──",
        "×2 ranks  loading",
        "r0        rank 0 life 2",
        "r1        rank 1 life 2",
        "r1        WARNING: hm",
        "r1        ERROR: bad",
    ]


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        (("--rank", "0", "--incarnation", "1"), ["loading", "rank 0 life 1"]),
        (("--stream", "err"), ["WARNING: hm", "ERROR: bad"]),
        (("--level", "error"), ["ERROR: bad"]),
        (("--grep", "rank . life 2"), ["rank 0 life 2", "rank 1 life 2"]),
        (("--tail", "1"), ["ERROR: bad"]),
        (("--since", "1970-01-01T00:33:21+00:00"), ["WARNING: hm", "ERROR: bad"]),
        (("--until", "1970-01-01T00:20:00+00:00", "--rank", "1"), ["loading", "rank 1 life 1"]),
        (("--since", "10m"), []),
    ],
)
def test_log_filters(finished, told, words, texts):
    assert [line["text"] for line in told("jobs", "logs", "job-1", *words)["lines"]] == texts


def test_following_a_job_that_is_over_prints_it_and_ends(finished, say):
    status, out, _ = say("jobs", "logs", "last", "--follow", "--json", "--tail", "2")
    assert status == 0
    assert [json.loads(line)["text"] for line in out.splitlines()] == ["WARNING: hm", "ERROR: bad"]
    assert say("jobs", "logs", "last", "-f")[1] == say("jobs", "logs", "last")[1]


def test_a_reader_that_leaves_is_no_error(home):
    folder, _ = _keep(home, "job-1", recovered_once)
    logs = LogWriter(folder.logs)
    logs.write(0, 1, "o", SECOND, b"many lines\n" * 100_000)
    logs.close()
    folder.release()
    command = f"{sys.executable} -m holdfast jobs logs last | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "r0        many lines\n"
    assert done.stderr == ""
    assert done.returncode == 141


# -- incidents


def test_incidents_ls(finished, failed, say, told):
    status, out, _ = say("incidents", "ls")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()] == ["JOB", "job-2", "job-1"]
    incidents = told("incidents", "ls", "digits")["incidents"]
    assert [(i["job"], i["number"], i["rank"], i["host"], i["steps_lost"]) for i in incidents] == [
        ("job-1", 1, 1, "node-a", 7)
    ]


def test_incidents_explain(finished, say):
    status, out, _ = say("incidents", "explain", "1")
    assert status == 0
    assert out.splitlines()[0] == "incident 1 of job-1: recovered in 1.88 s"
    assert "host node-a, rank 1, incarnation 1, pid 1002" in out
    assert "  last words" in out
    assert say("incidents", "explain", "job-1", "last")[1] == out


def test_the_last_line_is_the_exception(failed, say):
    for verb in ("show", "explain"):
        assert say("incidents", verb, "last", "1")[1].splitlines()[-1] == "ValueError: boom"


def test_incidents_show_has_every_fact(finished, told):
    incident = told("incidents", "show", "job-1", "1")["incident"]
    assert [phase["name"] for phase in incident["phases"]] == [
        "detect",
        "release",
        "decide",
        "muster",
        "regroup",
        "restore",
        "first step",
    ]
    assert incident["tail"] == ["last words"]
    assert incident["files_changed"] == []
    assert list(incident)[-1] == "traceback"


# -- goodput and replay


def test_goodput(finished, say, told):
    status, out, _ = say("goodput", "job-1")
    assert status == 0
    assert out.startswith("goodput 51.0 % of 18.62 s")
    assert "100.0 %" in out
    result = told("goodput")["goodput"]
    assert sum(result["buckets"].values()) == pytest.approx(result["wall_seconds"])
    assert result["buckets"]["lost"] == pytest.approx(3.75)


def test_replay_equals_the_state(finished, say, told):
    status, out, _ = say("replay", "job-1")
    assert status == 0
    assert "equals the agent's own state" in out
    document = told("replay", "job-1", "--events")
    assert document["equal"] is True
    assert document["seq"] == len(document["events"]) == finished.seq
    assert document["state"]["status"] == "COMPLETED"


def test_replay_to_a_record(finished, told, say):
    assert told("replay", "job-1", "--to", "1")["state"]["phase"] == "mustering"
    out = say("replay", "job-1", "--to", "9", "--events")[1]
    assert "ProcessLost" in out
    assert "because" in out


def test_replay_finds_a_journal_that_was_changed(finished, say, home):
    with contextlib.closing(sqlite3.connect(home.folders()[0].journal)) as connection, connection:
        connection.execute("""UPDATE records SET delta = '{"best_step": 99}' WHERE event LIKE '%"step":30%'""")
    status, out, _ = say("replay", "job-1")
    assert status == 1
    assert "differs in: " in out
    assert "best_step" in out


def test_tables_on_a_terminal(finished, failed, monkeypatch, capsys):
    from rich.console import Console

    from holdfast.cli.show import Screen

    assert Console
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Screen().colour
    assert main(["jobs", "ls"]) == 0
    out = capsys.readouterr().out
    assert "\x1b[31mFAILED" in out
    assert "…" in out
