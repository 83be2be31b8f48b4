"""Third-party modules may be imported ahead; the user's own may not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_libraries_and_own_files_are_told_apart(tmp_path: Path):
    (tmp_path / "mine.py").write_text("import msgspec\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import json, mine, sys\nfrom holdfast.worker.learn import imported\n"
        "found = imported()\nprint(json.dumps(found))\n"
    )
    out = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout
    found = json.loads(out)
    assert "msgspec" in found["libraries"]
    assert "json" in found["libraries"]
    assert "mine" not in found["libraries"]
    assert not [name for name in found["libraries"] if name.startswith("holdfast")]
    assert {str(tmp_path / "mine.py"), str(script)} <= set(found["own_files"])


def loaded_by(statement: str) -> set[str]:
    """The top-level packages that a fresh interpreter has after a statement."""
    code = f"import sys\n{statement}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return set(out.split())


def test_import_is_light():
    assert not loaded_by("import holdfast") & {"torch", "msgspec", "asyncio", "rich", "psutil"}


def test_the_worker_side_needs_nothing_but_the_standard_library():
    rooms = "boot, birth, board, fresh, hooks, learn, life, nursery, store, titles, wire"
    added = loaded_by(f"from holdfast.worker import {rooms}") - loaded_by("pass") - {"holdfast"}
    assert added <= set(sys.stdlib_module_names)
