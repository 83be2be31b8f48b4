"""What the figures of this run depend on, as they were when it ran."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform

import msgspec

from holdfast.model.errors import Unsupported


class Conditions(msgspec.Struct, frozen=True):
    cores: int
    load: float
    machine: str
    python: str
    torch: str
    seed: int
    ranks: int
    steps: int

    @property
    def brief(self) -> str:
        return (
            f"{self.ranks} ranks on gloo · {self.cores} cores, load {self.load:.1f} · torch {self.torch} · "
            f"seed {self.seed}"
        )

    @property
    def sentence(self) -> str:
        return (
            f"{self.ranks} ranks on gloo · {self.cores} cores, load {self.load:.1f} · {self.machine} · "
            f"python {self.python} · torch {self.torch} · seed {self.seed}"
        )


def observe(*, seed: int, ranks: int, steps: int) -> Conditions:
    if importlib.util.find_spec("torch") is None:
        raise Unsupported("the demo trains with torch, which is not installed", remedy="pip install 'holdfast[torch]'")
    return Conditions(
        cores=len(os.sched_getaffinity(0)),
        load=os.getloadavg()[0],
        machine=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        torch=importlib.metadata.version("torch"),
        seed=seed,
        ranks=ranks,
        steps=steps,
    )
