"""From the output plan to what happens to one rank's two streams."""

from __future__ import annotations

import os
import socket

from holdfast.agent.console import ERR, OUT, Style, prefix_of
from holdfast.model.ids import Rank
from holdfast.model.output import OutputPlan
from holdfast.model.spec import JobSpec

_BIT = {OUT: 1, ERR: 2}
_FILE = {OUT: "stdout.log", ERR: "stderr.log"}


def styles(spec: JobSpec, plan: OutputPlan, rank: Rank, attempt_folder: str | None) -> dict[str, Style]:
    """One style per stream. Files lie where torchrun puts them: ATTEMPT/RANK/stdout.log and ATTEMPT/filtered_*.log."""
    return {stream: _style(spec, plan, rank, attempt_folder, stream) for stream in (OUT, ERR)}


def _style(spec: JobSpec, plan: OutputPlan, rank: Rank, folder: str | None, stream: str) -> Style:
    bit = _BIT[stream]
    tee = bool(plan.tee[rank] & bit)
    kept = tee or bool(plan.redirects[rank] & bit)
    wanted = not plan.local_ranks_filter or rank in plan.local_ranks_filter
    prefix = ""
    if tee:
        hostname = socket.gethostname()
        template = plan.log_line_prefix_template
        prefix = prefix_of(template, role=spec.role, rank=rank, local_rank=rank, hostname=hostname)
    words = plan.duplicate_stdout_filters if stream == OUT else plan.duplicate_stderr_filters
    files: tuple[str, ...] = ()
    filters: tuple[tuple[str, tuple[str, ...]], ...] = ()
    if folder is not None:
        files = (os.path.join(folder, str(rank), _FILE[stream]),) if kept else ()
        filters = ((os.path.join(folder, f"filtered_{_FILE[stream]}"), words),) if words and kept else ()
    return Style(shown=wanted and (tee or not kept), prefix=prefix, files=files, filters=filters)


def wants_files(plan: OutputPlan) -> bool:
    return any(plan.tee) or any(plan.redirects) or plan.log_dir is not None
