"""Reading a script ahead: only what is certain is used, and what is not is said."""

from __future__ import annotations

import pytest

from holdfast.cli.scan import scan


def settings(source):
    return {setting.name: setting.value for setting in scan(source).settings}


def obstacles(source):
    return [obstacle.name for obstacle in scan(source).obstacles]


@pytest.mark.parametrize(
    "source",
    ["import torch", "from torch import nn", "import mylib", "from . import model", "import importlib",
     "def f():\n  import torch", "__import__('torch')", "exec(open('x').read())", "import lightning as L"],
)  # fmt: skip
def test_a_script_that_may_import_torch(source):
    assert scan(source).may_import_torch


@pytest.mark.parametrize("source", ["", "import os, sys, json", "from collections import deque\nprint(1)"])
def test_a_script_that_cannot_import_torch(source):
    assert not scan(source).may_import_torch


@pytest.mark.parametrize(
    "line",
    [
        "os.environ['OMP_NUM_THREADS'] = '4'",
        "os.environ['OMP_NUM_THREADS'] = str(4)",
        "os.environ.setdefault('OMP_NUM_THREADS', '4')",
        "os.putenv('OMP_NUM_THREADS', '4')",
        "os.environ.update({'OMP_NUM_THREADS': '4'})",
        "os.environ.update(OMP_NUM_THREADS='4')",
        "os.environ |= {'OMP_NUM_THREADS': '4'}",
        "os.environ['A'], os.environ['OMP_NUM_THREADS'] = '1', '4'",
        "with open('x') as f:\n    os.environ['OMP_NUM_THREADS'] = '4'",
        "if __name__ == '__main__':\n    os.environ['OMP_NUM_THREADS'] = '4'",
        "def setup():\n    os.environ['OMP_NUM_THREADS'] = '4'\nsetup()",
        "from os import environ as e\ne['OMP_NUM_THREADS'] = '4'",
        "import os as system\nsystem.environ['OMP_NUM_THREADS'] = '4'",
        "env = os.environ\nenv['OMP_NUM_THREADS'] = '4'",
    ],
)
def test_constants_ahead_of_torch_are_found(line):
    source = f"import os\n{line}\nimport torch\n"
    assert settings(source)["OMP_NUM_THREADS"] == "4"
    assert obstacles(source) == []


@pytest.mark.parametrize(
    "line",
    [
        "os.environ['OMP_NUM_THREADS'] = str(os.cpu_count())",
        "os.environ['OMP_NUM_THREADS'] = sys.argv[1]",
        "if sys.argv:\n    os.environ['OMP_NUM_THREADS'] = '4'",
        "for n in '12':\n    os.environ['OMP_NUM_THREADS'] = n",
        "sys.argv and os.environ.setdefault('OMP_NUM_THREADS', '4')",
        "def f():\n    if sys.argv: return\n    os.environ['OMP_NUM_THREADS'] = '4'\nf()",
        "os.environ['OMP_NUM_THREADS'] += '4'",
        "try:\n    pass\nexcept OSError:\n    os.environ['OMP_NUM_THREADS'] = '4'",
        "del os.environ['OMP_NUM_THREADS']",
        "os.environ.pop('OMP_NUM_THREADS', None)",
    ],
)
def test_what_cannot_be_known_ahead_of_torch_is_an_obstacle(line):
    source = f"import os, sys\n{line}\nimport torch\n"
    assert obstacles(source) == ["OMP_NUM_THREADS"]
    assert settings(source) == {}


@pytest.mark.parametrize("line", ["os.environ.update(load())", "os.environ[name()] = '1'", "os.environ.clear()"])
def test_unknown_names_are_an_obstacle(line):
    assert obstacles(f"import os\n{line}\nimport torch\n") == [None]


def test_after_torch_it_is_too_late_in_any_start():
    source = "import os, torch\nos.environ['OMP_NUM_THREADS'] = str(f())\nos.environ['MKL_NUM_THREADS'] = '1'\n"
    assert (settings(source), obstacles(source)) == ({}, [])


def test_torchs_compiler_is_imported_later_than_torch():
    assert settings("import os, torch\nos.environ['TORCHINDUCTOR_CACHE_DIR'] = '/x'") == {
        "TORCHINDUCTOR_CACHE_DIR": "/x"
    }
    assert obstacles("import os, torch\nos.environ['TORCHINDUCTOR_CACHE_DIR'] = f()") == ["TORCHINDUCTOR_CACHE_DIR"]


def test_a_module_that_may_have_imported_torch_makes_it_uncertain():
    source = "import os\nimport mylib\nos.environ['OMP_NUM_THREADS'] = '4'\nimport torch\n"
    assert obstacles(source) == ["OMP_NUM_THREADS"]


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "CUDA_VISIBLE_DEVICES", "TORCH_NCCL_BLOCKING_WAIT"])
def test_what_is_read_after_imports_is_the_scripts_own_affair(name):
    for value in ("'x'", "f()"):
        source = f"import os\nos.environ['{name}'] = {value}\nimport torch\n"
        assert (settings(source), obstacles(source)) == ({}, [])


@pytest.mark.parametrize(
    "name", ["RANK", "MASTER_PORT", "PYTHONPATH", "LD_LIBRARY_PATH", "PATH", "HF_TOKEN", "API_KEY"]
)
def test_what_belongs_to_the_launcher_or_is_secret_is_not_taken(name):
    assert settings(f"import os\nos.environ['{name}'] = 'x'\nimport torch\n") == {}


def test_other_libraries_lose_only_their_own_head_start():
    seen = scan("import os, torch\nos.environ['HF_HOME'] = f()\nimport transformers\n")
    assert seen.obstacles == ()
    assert [obstacle.name for obstacle in seen.library_obstacles] == ["HF_HOME"]
    assert settings("import os, torch\nos.environ['HF_HOME'] = '/x'\nimport transformers\n") == {"HF_HOME": "/x"}


def test_the_last_word_before_torch_holds():
    source = "import os\nos.environ['OMP_NUM_THREADS'] = '1'\nos.environ['OMP_NUM_THREADS'] = '2'\nimport torch\n"
    assert settings(source) == {"OMP_NUM_THREADS": "2"}
    source = "import os\nos.environ['OMP_NUM_THREADS'] = '1'\nos.environ.setdefault('OMP_NUM_THREADS', '2')\n"
    assert settings(source) == {"OMP_NUM_THREADS": "1"}


def test_imports_for_type_checkers_import_nothing():
    source = "import os\nif TYPE_CHECKING:\n    import torch\nos.environ['OMP_NUM_THREADS'] = '4'\nimport torch\n"
    assert settings(source) == {"OMP_NUM_THREADS": "4"}


def test_the_line_is_told():
    assert scan("import os\n\nos.environ['OMP_NUM_THREADS'] = '4'\n").settings[0].line == 3
    assert scan("import os\n\nos.environ['OMP_NUM_THREADS'] = f()\n").obstacles[0].line == 3


@pytest.mark.parametrize("source", ["def", b"\xff\xfe\x00", "\0", "(" * 5000])
def test_what_is_not_python_is_left_for_python_to_report(source):
    assert scan(source).settings == ()


def test_a_function_that_calls_itself_ends():
    scan("import os\ndef f():\n    f()\n    os.environ['X'] = '1'\nf()\n")
