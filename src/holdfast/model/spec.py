"""What the user asked for: the command as it will run, and the terms under which it is kept running."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast.model.ids import JobId


class Mode(StrEnum):
    SCRIPT = "script"
    MODULE = "module"
    RUN_PATH = "run_path"
    EXEC = "exec"  # --no-python: any program


class Start(StrEnum):
    """How workers come to life unless something is in the way."""

    NURSERY = "nursery"
    COLD = "cold"


class Limits(msgspec.Struct, frozen=True):
    """Every bound on a wait. The user sets the first two; the rest is derived or fixed, and shown by --dry-run."""

    grace_seconds: float = 0.05  # between SIGTERM and SIGKILL for a survivor that can still hear
    shutdown_seconds: float = 30.0  # for workers to leave when the user stops the job
    nursery_seconds: float = 180.0  # imports from a cold disk
    birth_seconds: float = 30.0  # from asking for a process to its being warm
    store_seconds: float = 15.0  # for an empty store to be open
    release_seconds: float = 30.0  # from SIGKILL to the end of a process: longer means the kernel cannot end it
    stopped_seconds: float = 10.0  # how long a worker may stay in SIGSTOP
    farewell_seconds: float = 2.0  # for exit handlers of a worker that raised
    teardown_seconds: float = 300.0  # for processes to leave after every rank has finished
    settle_seconds: float = 5.0  # after which a job without countable steps is taken to have recovered
    spares_seconds: float = 10.0  # the latest that spares are made after a start, steps or not
    backoff_seconds: float = 0.5  # before the second restart without progress; doubles from there
    backoff_cap_seconds: float = 60.0  # the longest such wait


class Terms(msgspec.Struct, frozen=True):
    """What the core must know of a job, and no more."""

    world: int
    start: Start = Start.NURSERY
    keeper: bool = True  # a warm process serves the store; otherwise rank 0 does, as without any launcher
    spares: int = 0
    max_restarts: int | None = None  # the user's hard limit on restarts; None: the budget decides
    budget: int = 10
    refill_steps: int = 10  # new steps that earn back one restart
    policy: str = "restart"
    shell_codes: bool = False  # exit codes 129 to 159 mean signals
    limits: Limits = Limits()


class JobSpec(msgspec.Struct, frozen=True):
    """A job as submitted: enough to start it again."""

    job_id: JobId
    name: str
    mode: Mode
    script: str
    arguments: tuple[str, ...]
    python: str
    cwd: str
    role: str
    run_id: str
    master_addr: str
    master_port: int  # 0: any free one
    environment: dict[str, str]  # what is set on top of the launcher's own
    terms: Terms
    preload: tuple[str, ...] = ()
    learn: bool = True  # the nursery may also import what the script was seen to import
    allow_drills: bool = False
    virtual_local_rank: bool = False
    spare_context: bool = False  # spares hold a CUDA context on the device of the rank they are meant for
    signals: tuple[str, ...] = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
    numa_binding: str | None = None
