"""What a worker is told about itself: torchelastic's environment contract, and Holdfast's few additions.

It decides nothing and reads nothing but the spec: what the launcher's own environment contributes was written into
`JobSpec.environment` when the job was planned. A test compares every key with what a real torchrun gives.
"""

from __future__ import annotations

from string import Template

from holdfast.model.ids import Incarnation, Rank
from holdfast.model.spec import JobSpec


def worker_environment(
    spec: JobSpec, rank: Rank, incarnation: Incarnation, restarts: int, port: int, *, agent_store: bool
) -> dict[str, str]:
    """What differs by worker or by incarnation, on top of the launcher's environment and `spec.environment`.

    On one node local rank, role rank and rank are the same number. TORCHELASTIC_ERROR_FILE is the caller's, who knows
    where files may lie.
    """
    world = str(spec.terms.world)
    environment = {
        "RANK": str(rank),
        "LOCAL_RANK": "0" if spec.virtual_local_rank else str(rank),
        "GROUP_RANK": "0",
        "ROLE_RANK": str(rank),
        "ROLE_NAME": spec.role,
        "LOCAL_WORLD_SIZE": world,
        "WORLD_SIZE": world,
        "GROUP_WORLD_SIZE": "1",
        "ROLE_WORLD_SIZE": world,
        "MASTER_ADDR": spec.master_addr,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(_max_restarts(spec)),
        "TORCHELASTIC_RUN_ID": spec.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": str(agent_store),
        "HOLDFAST_JOB_ID": spec.job_id,
        "HOLDFAST_JOB_NAME": spec.name,
        "HOLDFAST_INCARNATION": str(incarnation),
    }
    if spec.virtual_local_rank:
        environment |= _own_gpu(spec, rank)
    # One run per job goes on over restarts; ranks other than 0 that log too keep runs of their own, as without us.
    if rank and spec.environment.get("WANDB_RUN_ID") == spec.job_id:
        environment["WANDB_RUN_ID"] = f"{spec.job_id}-{rank}"
    return environment


def worker_arguments(spec: JobSpec, rank: Rank) -> tuple[str, ...]:
    """The script's arguments with torchelastic's one macro, `${local_rank}`, filled in."""
    return tuple(
        Template(argument).safe_substitute(local_rank=rank) if "$" in argument else argument
        for argument in spec.arguments
    )


def _max_restarts(spec: JobSpec) -> int:
    """Scripts read a number. Under a budget there is none that never changes; what is in hand comes closest."""
    return spec.terms.budget if spec.terms.max_restarts is None else spec.terms.max_restarts


def _own_gpu(spec: JobSpec, rank: Rank) -> dict[str, str]:
    """The one GPU this worker may see. ROCm's list goes before CUDA's where both are set."""
    hip = spec.environment.get("HIP_VISIBLE_DEVICES")
    visible = hip or spec.environment.get("CUDA_VISIBLE_DEVICES")
    gpu = visible.split(",")[rank].strip() if visible is not None else str(rank)
    return {"CUDA_VISIBLE_DEVICES": gpu} | ({"HIP_VISIBLE_DEVICES": gpu} if hip else {})
