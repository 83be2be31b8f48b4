"""What becomes of the script's output: torchrun's redirects, tees, filters and prefixes."""

from __future__ import annotations

import msgspec


class OutputPlan(msgspec.Struct, frozen=True):
    redirects: tuple[int, ...]  # per local rank: 0 none, 1 stdout, 2 stderr, 3 both
    tee: tuple[int, ...]
    log_dir: str | None = None
    local_ranks_filter: tuple[int, ...] = ()  # empty: all
    log_line_prefix_template: str = ""
    duplicate_stdout_filters: tuple[str, ...] = ()
    duplicate_stderr_filters: tuple[str, ...] = ()
