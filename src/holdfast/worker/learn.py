"""What this script imported, told apart: modules the nursery may import for its next life, and files of its own.

Third-party modules are those that live in a site folder. Everything else is the user's code, which may be edited
between two lives and must be read anew each time.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from typing import Any

LIMIT = 20_000


def imported() -> dict[str, Any]:
    folders = _library_folders()
    script_folders = tuple(os.path.join(os.path.abspath(path), "") for path in sys.path[:1])
    libraries, own = [], []
    for name, module in list(sys.modules.items())[:LIMIT]:
        path = getattr(module, "__file__", None)
        if not isinstance(path, str) or name == "__main__" or name.split(".")[0] == "holdfast":
            continue
        path = os.path.abspath(path)
        if path.startswith(folders) and not _inside_nearer(path, script_folders, folders):
            libraries.append(name)
        elif path.endswith(".py"):
            own.append(path)
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if isinstance(main, str):
        own.append(os.path.abspath(main))
    return {"libraries": libraries, "own_files": own}


def _inside_nearer(path: str, nearer: tuple[str, ...], folders: tuple[str, ...]) -> bool:
    """Is the module beside the script, although the script itself lies inside a library folder?"""
    return any(path.startswith(n) and n.startswith(folders) and n not in folders for n in nearer)


def _library_folders() -> tuple[str, ...]:
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    paths.update(site.getsitepackages())
    paths.add(site.getusersitepackages())
    return tuple(sorted(os.path.join(os.path.abspath(path), "") for path in paths if path))
