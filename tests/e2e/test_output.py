"""What the script prints, and what it finds in its environment."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.e2e.conftest import kill, wait_until

pytestmark = pytest.mark.e2e


def script(tmp_path: Path, text: str, name: str = "script.py") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_output_is_raw_and_ours_is_on_stderr(run, tmp_path):
    job = run(
        "--nproc-per-node", 2, script(tmp_path, "import sys\nprint('to out')\nprint('to err', file=sys.stderr)\n")
    )
    assert job.wait() == 0
    assert job.stdout() == "to out\nto out\n"
    theirs = [line for line in job.stderr().splitlines() if not line.startswith("holdfast: ")]
    assert theirs == ["to err", "to err"]


def test_lines_of_a_rank_keep_their_order_and_are_never_mixed(run, tmp_path):
    text = (
        "import os, sys\n"
        "for n in range(2000):\n"
        "    sys.stdout.write(os.environ['RANK'] + ' ')\n"
        "    sys.stdout.flush()\n"
        "    sys.stdout.write(f'{n} ' + 'x' * (n % 100) + chr(10))\n"
    )
    job = run("--nproc-per-node", 3, script(tmp_path, text))
    assert job.wait() == 0
    seen: dict[str, list[int]] = {"0": [], "1": [], "2": []}
    for line in job.stdout().splitlines():
        rank, number, *_ = line.split(" ")
        seen[rank].append(int(number))
    assert all(numbers == list(range(2000)) for numbers in seen.values())


def test_a_kill_loses_no_finished_line(run, tmp_path):
    text = (
        "import os, signal\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    for n in range(500):\n        print('line', n)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    job = run(script(tmp_path, text))
    assert job.wait() == 0, job.stderr()
    assert job.stdout() == "".join(f"line {n}\n" for n in range(500))


def test_a_hundred_megabytes_pass_through(run, tmp_path):
    text = "import sys\nline = 'y' * 99 + chr(10)\nfor _ in range(1000):\n    sys.stdout.write(line * 1000)\n"
    job = run(script(tmp_path, text))
    assert job.wait(120) == 0, job.stderr()
    assert job.out.stat().st_size == 100_000_000
    logs = sum(f.stat().st_size for f in job.home.folders()[0].logs.rglob("*"))
    assert logs >= 100_000_000


def test_a_reader_that_does_not_read_does_not_stop_recovery(run, tmp_path):
    text = (
        "import os, signal, time, pathlib\n"
        "life = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
        "if life == 0 and os.environ['RANK'] == '0':\n"
        "    while True:\n        print('z' * 1000)\n"
        "if life == 0:\n    time.sleep(60)\n"
        "pathlib.Path(os.environ['SCRATCH'], 'again' + os.environ['RANK']).touch()\n"
    )
    read, write = os.pipe()
    job = run("--nproc-per-node", 2, script(tmp_path, text), stdout=write)
    os.close(write)
    workers = job.workers(2)
    full = fcntl.fcntl(read, fcntl.F_GETPIPE_SZ) - 4096
    wait_until(lambda: int.from_bytes(fcntl.ioctl(read, termios.FIONREAD, b"    "), "little") >= full, "a full pipe")
    kill(workers[1])
    wait_until(lambda: (tmp_path / "again0").exists() and (tmp_path / "again1").exists(), "the next incarnation")
    os.close(read)
    assert job.wait() == 0, job.stderr()


def test_a_terminal_is_shown_to_workers(tmp_path):
    path = script(
        tmp_path, "import sys, os\nprint(sys.stdout.isatty(), sys.stderr.isatty(), os.get_terminal_size(1))\n"
    )
    for count in ("1", "2"):
        shown, code = in_a_terminal(tmp_path, path, "--nproc-per-node", count)
        assert code == 0
        assert b"True True" in shown


def in_a_terminal(tmp_path, path, *flags, answer=b""):
    """Run it as the foreground job of a terminal, answer its first question; what was shown, and the exit code."""
    main, side = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "run", *flags, str(path)],
        stdin=side,
        stdout=side,
        stderr=side,
        env=os.environ | {"HOLDFAST_HOME": str(tmp_path / "home")},
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(side)
    shown = b""
    while True:
        try:
            data = os.read(main, 4096)
        except OSError:
            break
        shown += data
        if answer and b"?" in shown:
            os.write(main, answer)
            answer = b""
    code = process.wait(30)
    os.close(main)
    return shown, code


def test_one_process_keeps_the_terminal_for_input(tmp_path):
    path = script(tmp_path, "name = input('who? ')\nprint('hello', name)\n")
    shown, code = in_a_terminal(tmp_path, path, answer=b"tester\n")
    assert b"hello tester" in shown
    assert code == 0


def test_several_processes_find_no_input_in_a_terminal(tmp_path):
    path = script(tmp_path, "input('who')\n")
    shown, code = in_a_terminal(tmp_path, path, "--nproc-per-node", "2")
    assert b"EOFError" in shown
    assert b"stopped" not in shown
    assert code == 1


def test_redirects_tees_prefixes_and_filters(run, tmp_path):
    path = script(tmp_path, "import os, sys\nprint('out', os.environ['RANK'])\nprint('err', file=sys.stderr)\n")
    logs = tmp_path / "logs"
    job = run(
        *("--nproc-per-node", 2, "--log-dir", logs, "--redirects", "2", "--tee", "1", "--role", "trainer"),
        *("--local-ranks-filter", "1", path),
    )
    assert job.wait() == 0, job.stderr()
    assert job.stdout() == "[trainer1]:out 1\n"
    attempt = next(logs.glob("*/attempt_0"))
    assert (attempt / "0/stdout.log").read_text() == "out 0\n"
    assert (attempt / "1/stderr.log").read_text() == "err\n"
    assert "err\n" not in job.stderr()


def test_the_line_prefix_template(run, tmp_path):
    path = script(tmp_path, "print('x')\n")
    job = run("--tee", "3", "--log-line-prefix-template", "${role_name}/${rank}> ", path)
    assert job.wait() == 0, job.stderr()
    assert job.stdout() == "default/0> x\n"


def test_the_script_is_main_as_python_would_have_it(run, tmp_path):
    text = (
        "import json, os, sys, pickle, multiprocessing\n"
        "class Thing: pass\n"
        "print(json.dumps({'name': __name__, 'file': __file__, 'argv': sys.argv, 'path0': sys.path[0],\n"
        "  'main': sys.modules['__main__'].Thing is Thing, 'spec': __spec__ is None, 'doc': __doc__,\n"
        "  'pickled': pickle.loads(pickle.dumps(Thing())).__class__ is Thing, 'line': sys.stdout.line_buffering}))\n"
    )
    path = script(tmp_path, text)
    job = run(path, "--flag", "value")
    assert job.wait() == 0, job.stderr()
    told = json.loads(job.stdout())
    plain = subprocess.run([sys.executable, "-u", path, "--flag", "value"], capture_output=True, text=True, check=True)
    assert told == json.loads(plain.stdout) | {"line": True}


def test_modules_and_run_path(run, tmp_path):
    path = script(tmp_path, "import sys\nprint(__name__, sys.argv[1:])\n", "mod.py")
    job = run("--run-path", path, "a")
    assert job.wait() == 0, job.stderr()
    assert job.stdout() == "__main__ ['a']\n"
    module = run("-m", "mod", "b", env={"PYTHONPATH": str(tmp_path)})
    assert module.wait() == 0, module.stderr()
    assert module.stdout() == "__main__ ['b']\n"


def test_siblings_draw_their_own_random_numbers(run, tmp_path):
    text = (
        "import random, os\nimport numpy, torch\n"
        "print(random.random(), numpy.random.rand(), torch.rand(1).item(), torch.initial_seed())\n"
    )
    job = run("--nproc-per-node", 4, script(tmp_path, text))
    assert job.wait() == 0, job.stderr()
    columns = list(zip(*(line.split() for line in job.stdout().splitlines()), strict=True))
    assert [len(set(column)) for column in columns] == [4, 4, 4, 4]


def test_titles_say_job_role_and_rank(run, scripts):
    job = run("--nproc-per-node", 2, "--name", "titled", "--role", "teacher", scripts / "count.py", 20)
    workers = job.workers(2)
    job.prints("rank 1 of 2 counts 1")
    title = Path(f"/proc/{workers[1].pid}/cmdline").read_bytes().decode()
    assert "titled" in title
    assert "teacher" in title
    assert "rank 1/2" in title
    assert "count.py" in title
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == 143
