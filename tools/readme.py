"""Copies what was measured into README.md, between its markers: the whole table, and apart from it the memory rows.

python tools/readme.py        # after bench/recovery.py
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
_MEMORY = re.compile(r"\b(RSS|PSS) \|")


def main() -> int:
    command = [sys.executable, str(ROOT / "bench" / "recovery.py"), "--markdown"]
    measured = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    text = README.read_text(encoding="utf-8")
    text = filled(text, "bench", measured)
    text = filled(text, "memory", memory_rows(measured))
    README.write_text(text, encoding="utf-8")
    return 0


def filled(text: str, name: str, content: str) -> str:
    """The text with new content between its two markers of this name."""
    before, start, rest = text.partition(f"<!-- {name}:start -->\n")
    _, end, after = rest.partition(f"<!-- {name}:end -->")
    if not start or not end:
        raise SystemExit(f"README.md has no markers {name}:start and {name}:end")
    return f"{before}{start}{content}\n{end}{after}"


def memory_rows(measured: str) -> str:
    lines = measured.splitlines()
    header = next((number for number, line in enumerate(lines) if line.startswith("| what |")), None)
    rows = [line for line in lines if _MEMORY.search(line)]
    if header is None or not rows:
        return "Not measured yet."
    return "\n".join([*lines[header : header + 2], *rows])


if __name__ == "__main__":
    sys.exit(main())
