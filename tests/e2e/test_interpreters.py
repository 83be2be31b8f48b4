"""Interpreters and surroundings that differ: another Python, threads at import, variables set in the script."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.e2e.conftest import kill, wait_until

pytestmark = pytest.mark.e2e


def test_an_interpreter_without_holdfast(run, scripts, tmp_path):
    other = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", other], check=True)
    python = other / "bin/python"
    assert subprocess.run([python, "-c", "import holdfast"], capture_output=True, check=False).returncode
    job = run("--nproc-per-node", 2, scripts / "count.py", 30, env={"PYTHON_EXEC": str(python)})
    job.prints("rank 1 of 2 counts 3")
    kill(job.workers(2)[1])
    assert job.wait() == 0, job.stderr()
    assert job.state.incidents["1"].remedy.colds == 0
    told = run(_script(tmp_path, "import sys\nprint(sys.prefix)\n"), env={"PYTHON_EXEC": str(python)})
    assert told.wait() == 0, told.stderr()
    assert told.stdout() == f"{other}\n"


def test_an_interpreter_that_is_not_there(run, scripts):
    job = run(scripts / "count.py", 3, env={"PYTHON_EXEC": "/nowhere/python"})
    assert job.wait() == 2
    assert "/nowhere/python" in job.stderr()
    assert "Traceback" not in job.stderr()


def test_a_nursery_with_threads_does_not_fork(run, tmp_path):
    path = _script(tmp_path, "import os, torch\nprint('cold', os.environ['RANK'])\n")
    (tmp_path / "sitecustomize.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(20,), daemon=True).start()\n"
    )
    job = run("--nproc-per-node", 2, path, env={"PYTHONPATH": str(tmp_path)})
    assert job.wait(120) == 0, job.stderr()
    assert "processes start cold" in job.stderr()
    assert "the nursery runs 2 threads" in job.stderr()
    assert job.stdout().count("cold") == 2


def test_numpy_gets_the_threads_it_would_have_had(run, tmp_path):
    text = (
        "import ctypes, numpy, torch, os\n"
        "maps = {line.split()[-1] for line in open('/proc/self/maps') if 'openblas' in line}\n"
        "threads = {ctypes.CDLL(m).scipy_openblas_get_num_threads64_() for m in maps}\n"
        "print(threads, 'OPENBLAS_NUM_THREADS' in os.environ)\n"
    )
    job = run(_script(tmp_path, text), env={"OMP_NUM_THREADS": "2"})
    assert job.wait() == 0, job.stderr()
    assert job.stdout() == "{2} False\n"


def test_variables_that_the_script_sets_before_it_imports_torch_take_effect(run, tmp_path):
    text = "import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport torch\nprint(torch.get_num_threads())\n"
    job = run(_script(tmp_path, text))
    assert job.wait() == 0, job.stderr()
    assert job.stdout() == "1\n"
    assert "OMP_NUM_THREADS" in job.stderr()


def test_what_the_script_imports_is_there_for_the_next_life(run, tmp_path):
    text = (
        "import os, signal, sys, time\nbefore = 'wave' in sys.modules, 'own' in sys.modules\n"
        "import wave, own, torch\n"
        "print(*before)\n"
        "p = torch.nn.Parameter(torch.ones(1)); o = torch.optim.AdamW([p])\n"
        "for _ in range(int(sys.argv[1])):\n    p.sum().backward(); o.step(); time.sleep(0.05)\n"
    )
    (tmp_path / "own.py").write_text("")
    job = run(_script(tmp_path, text), 60)
    job.spares(1)
    wait_until(lambda: (s := job.spares(1)) and s[0].generation == 2, "a spare that has learned")
    kill(job.workers(1)[0])
    assert job.wait() == 0, job.stderr()
    assert job.stdout() == "False False\nTrue False\n"


def test_a_file_name_need_not_be_text(run, tmp_path):
    path = os.fsencode(tmp_path) + b"/na\xffme.py"
    with open(path, "w") as file:
        file.write("raise ValueError(__file__)\n")
    job = run(os.fsdecode(path))
    assert job.wait() == 1
    assert "Traceback" in job.stderr()
    assert "holdfast/cli" not in job.stderr()
    assert job.state.incidents["1"].verdict.sentence.endswith("me.py")


def test_a_changed_script_is_said(run, tmp_path):
    text = (
        "import os, sys, time, torch\np = torch.nn.Parameter(torch.ones(1)); o = torch.optim.AdamW([p])\n"
        "for _ in range(60):\n    p.sum().backward(); o.step(); time.sleep(0.05)\n"
    )
    path = _script(tmp_path, text)
    job = run(path)
    job.spares(1)
    path.write_text(text.replace("60", "20"))
    kill(job.workers(1)[0])
    assert job.wait() == 0, job.stderr()
    assert job.state.incidents["1"].files_changed == (str(path),)


def _script(tmp_path, text):
    path = tmp_path / "script.py"
    path.write_text(text)
    return path
