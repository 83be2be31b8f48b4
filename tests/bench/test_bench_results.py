"""What is kept between runs, and what is measured again."""

import recovery
from harness.results import Results, current, load
from harness.rows import Row

MACHINE, CODE = {"id": "m"}, {"commit": "c", "digest": "d"}


def results(tmp_path, machine=MACHINE, code=CODE):
    return Results(str(tmp_path / "r.json"), machine, code)


def test_finished_sessions_are_found_again(tmp_path):
    first = results(tmp_path)
    first.begin("row", {"kills": 10})
    first.keep("row", 0, {"seconds": 1.0})
    again = results(tmp_path)
    again.begin("row", {"kills": 10})
    assert again.has("row", 0) and not again.has("row", 1) and not again.has("other", 0)
    assert load(str(tmp_path / "r.json"))["rows"]["row"]["sessions"]["0"] == {"seconds": 1.0}


def test_other_code_machine_or_parameters_are_measured_again(tmp_path):
    first = results(tmp_path)
    first.begin("row", {"kills": 10})
    first.keep("row", 0, {})
    for machine, code, parameters in (
        ({"id": "other"}, CODE, {"kills": 10}),
        (MACHINE, {"commit": "other", "digest": "d"}, {"kills": 10}),
        (MACHINE, {"commit": "c", "digest": "other"}, {"kills": 10}),
        (MACHINE, CODE, {"kills": 2}),
    ):
        again = results(tmp_path, machine, code)
        again.begin("row", parameters)
        assert not again.has("row", 0)


def test_rows_of_another_commit_are_kept_but_not_shown(tmp_path):
    first = results(tmp_path)
    first.begin("row", {})
    first.keep("row", 0, {})
    other = results(tmp_path, code={"commit": "other", "digest": "d"})
    assert "row" in other.data["rows"] and current(other.data)["rows"] == {}


def test_sessions_take_turns_within_a_group_in_alternating_order():
    def row(name, group, sessions):
        return Row(name, name, "kills", group, sessions, lambda _session, _results: {})

    turns = list(recovery._turns([row("a", "g", 3), row("b", "g", 2), row("c", "h", 1)]))
    assert [(one.name, session) for one, session in turns] == [
        ("a", 0),
        ("b", 0),
        ("b", 1),
        ("a", 1),
        ("a", 2),
        ("c", 0),
    ]


def test_interrupted_run_keeps_what_it_finished_and_goes_on_from_there(tmp_path, monkeypatch, capsys):
    measured = []

    def measure(session, _results):
        if len(measured) == 1 and not resumed:
            raise KeyboardInterrupt
        measured.append(session)
        return {"seconds": float(session + 1)}

    resumed = False
    machine = {"cores": 2, "cpu": "", "memory_gb": 1, "kernel": "", "python": "", "torch": "", "cuda": "", "id": "m"}
    row = Row("start-holdfast", "start", "start", "start", 2, measure, {"world": 4})
    monkeypatch.setattr(recovery, "RESULTS", str(tmp_path))
    monkeypatch.setattr(recovery, "every_row", lambda _size, _seed: [row])
    monkeypatch.setattr(recovery.machine, "describe", lambda: machine)
    monkeypatch.setattr(recovery.machine, "code", lambda: CODE)
    monkeypatch.setattr(recovery.machine, "moment", lambda: {"at": "t", "load": 0.0, "background": 0.0})
    monkeypatch.setattr(recovery.signal, "signal", lambda *_: None)
    assert recovery.main(["--name", "r"]) == recovery.INTERRUPTED
    resumed = True
    assert recovery.main(["--name", "r"]) == 0
    assert measured == [0, 1]
    assert recovery.main(["--name", "r"]) == 0
    assert measured == [0, 1]
    assert recovery.main(["--name", "r", "--again"]) == 0
    assert measured == [0, 1, 0, 1]
    assert recovery.main(["--name", "r", "--markdown"]) == 0
    assert "| start | s | 2 | 0 | 1.500 |" in capsys.readouterr().out
