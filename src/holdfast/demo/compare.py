"""The same script and the same kills of workers under torchrun, with both of its store settings, in its own time.

A kill from which torchrun is not back within the cap is counted as a failure; the launcher is then ended and started
anew for the next one, so that every kill of the plan is tried. Spares and a nursery are nothing that torchrun has.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Sequence

import msgspec

from holdfast.adapters.injection import Kind, Victim
from holdfast.demo.inject import Injector, Made
from holdfast.demo.launch import Launched
from holdfast.demo.plan import Fault
from holdfast.demo.stage import Options, read_result

CAP_SECONDS = 60.0
START_SECONDS = 120.0
END_SECONDS = 120.0
_LOOK_SECONDS = 0.01
MAX_RESTARTS = 10


class Setting(msgspec.Struct, frozen=True):
    name: str
    flags: tuple[str, ...]
    environment: dict[str, str]


SETTINGS = (
    Setting("default", (), {}),
    Setting(
        "c10d, unshared store",
        ("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"),
        {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    ),
)


class Outcome(msgspec.Struct, frozen=True):
    """One kill under torchrun."""

    fault: Fault
    seconds: float | None  # from the kill to the last rank's first step; None: not back within the cap
    why: str = ""


class Comparison(msgspec.Struct, frozen=True):
    setting: str
    outcomes: list[Outcome]
    launches: int
    seconds: float
    load: float  # of the machine when it began
    weights_sha256: str  # empty: the run was not finished


def most_seconds(plan: Sequence[Fault]) -> float:
    """The longest that all of it can take."""
    kills = sum(fault.hurts_workers for fault in plan)
    return len(SETTINGS) * ((kills + 1) * START_SECONDS + kills * CAP_SECONDS + END_SECONDS)


def run(setting: Setting, plan: Sequence[Fault], options: Options, told: Callable[[str], None]) -> Comparison:
    folder = os.path.join(options.folder, f"torchrun-{SETTINGS.index(setting)}")
    left = [fault for fault in plan if fault.hurts_workers]
    outcomes: list[Outcome] = []
    launches, began, load = 0, time.monotonic(), os.getloadavg()[0]
    while True:
        launches += 1
        outcomes_here, finished = _launch(setting, left, options, folder, launches, told)
        outcomes += outcomes_here
        left = left[len(outcomes_here) :]
        if finished or not outcomes_here:
            break
    outcomes += [Outcome(fault, None, "never reached") for fault in left]
    result = read_result(folder) or {}
    return Comparison(
        setting.name, outcomes, launches, time.monotonic() - began, load, str(result.get("weights_sha256", ""))
    )


def _launch(
    setting: Setting, plan: list[Fault], options: Options, folder: str, number: int, told: Callable[[str], None]
) -> tuple[list[Outcome], bool]:
    """Kills of one launch until one is not survived; whether the training came to its end."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run"),
        *(f"--nproc-per-node={options.ranks}", f"--max-restarts={MAX_RESTARTS}"),
        *(setting.flags or (f"--master-port={_free_port()}",)),
    ]
    arguments = options.script_arguments()
    trace_folder = os.path.join(folder, f"launch-{number}")
    launched = Launched(command, folder, options.ranks, arguments, setting.environment, trace_folder)
    injector = Injector(plan, launched.trace, lambda fault: _victims(launched, fault))
    outcomes: list[Outcome] = []
    deadline = time.monotonic() + START_SECONDS
    try:
        while launched.poll():
            changed = injector.look()
            if changed is not None and not changed.back:
                deadline = time.monotonic() + CAP_SECONDS
            elif changed is not None:
                outcomes.append(Outcome(changed.fault, changed.back_seconds))
                told(f"   {changed.fault.target} at step {changed.fault.step}: back after {changed.back_seconds:.2f} s")
                deadline = time.monotonic() + END_SECONDS
            elif injector.waiting_since_ns is None and launched.trace.is_whole(launched.trace.life):
                deadline = max(deadline, time.monotonic() + 1.0) if _moves(launched) else deadline
            if time.monotonic() > deadline:
                break
            time.sleep(_LOOK_SECONDS)
        injector.look()
        waiting = _waiting(injector)
        if waiting is not None and len(outcomes) < len(plan):
            code = launched.exit_code
            why = f"not back within {CAP_SECONDS:.0f} s" if code is None else f"torchrun left with exit code {code}"
            outcomes.append(Outcome(waiting.fault, None, why))
            told(f"   {waiting.fault.target} at step {waiting.fault.step}: {why}")
        return outcomes, launched.exit_code == 0
    finally:
        launched.end()


def _moves(launched: Launched) -> bool:
    newest = max((step.at_ns for step in launched.trace.steps[-launched.trace.ranks :]), default=0)
    return time.monotonic_ns() - newest < 10_000_000_000


def _waiting(injector: Injector) -> Made | None:
    return next((made for made in injector.made if made.done and not made.back), None)


def _victims(launched: Launched, fault: Fault) -> list[Victim]:
    """torchrun's workers are its children; the trace says which is which rank."""
    pids = launched.trace.pids(launched.trace.life)
    if not all(rank in pids for rank in fault.ranks):
        return []
    return [Victim(Kind.WORKER, pids[rank], launched.pid, rank) for rank in fault.ranks]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
