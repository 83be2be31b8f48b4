"""The first file every process of ours runs: it makes this package importable and takes the role it is given.

Run by path (`python boot.py ROLE ...`), so that it works in an interpreter that does not have Holdfast installed and
puts nothing of Holdfast's surroundings on the script's import path.
"""

from __future__ import annotations

import importlib.util
import os
import sys


def _make_importable() -> None:
    if "holdfast" in sys.modules:
        return
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    spec = importlib.util.spec_from_file_location(
        "holdfast", os.path.join(root, "__init__.py"), submodule_search_locations=[root]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["holdfast"] = package
    spec.loader.exec_module(package)


def main() -> None:
    # Python put this file's folder first on the path, where a script's own folder belongs.
    if sys.path and os.path.abspath(sys.path[0]) == os.path.dirname(os.path.abspath(__file__)):
        del sys.path[0]
    _make_importable()
    role, arguments = sys.argv[1], sys.argv[2:]
    if role == "nursery":
        from holdfast.worker import nursery

        birth = nursery.serve(control_fd=int(arguments[0]))
    elif role == "cold":
        from holdfast.worker import birth as births

        birth = births.of_fresh_process(*map(int, arguments[:4]))
    elif role == "exec":
        from holdfast.worker import birth as births

        births.become(int(arguments[0]), int(arguments[1]), arguments[2:])
    else:
        raise SystemExit(f"holdfast.worker.boot: unknown role {role!r}")

    from holdfast.worker import life

    life.live(birth)


if __name__ == "__main__":
    main()
