"""`holdfast env`: a description of this machine for a bug report. Values that may be secret are never printed."""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
from collections.abc import Mapping
from importlib import metadata

import msgspec

from holdfast import __version__
from holdfast.cli import facts

PACKAGES = (
    "torch",
    "numpy",
    "msgspec",
    "psutil",
    "rich",
    "setproctitle",
    "shtab",
    "accelerate",
    "lightning",
    "transformers",
    "deepspeed",
    "nvidia-nccl-cu13",
    "nvidia-nccl-cu12",
)
# Only variables that bear on a job are shown at all.
RELEVANT = re.compile(
    r"(PET|HOLDFAST|TORCH|TORCHELASTIC|PYTORCH|NCCL|GLOO|CUDA|HIP|OMP|MKL|OPENBLAS|KMP|UCX|FI|SLURM|PYTHON|LD|WANDB|"
    r"MLFLOW|XDG|MASTER|RANK|WORLD|LOCAL|TMPDIR|VIRTUAL_ENV|CONDA)(_.*)?|PATH|HOME|LANG|TERM|NO_COLOR|PYTHON[A-Z]+"
)
_SECRET_NAME = re.compile(
    r"KEY|TOKEN|SECRET|PASS(WORD|WD|PHRASE)?|CREDENTIAL|AUTH|COOKIE|SESSION|JWT|PRIVATE|SIGNATURE|DSN|WEBHOOK",
    re.IGNORECASE,
)
_SECRET_IN_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_SECRET_ARGUMENT = re.compile(r"(?i)\b((?:api_?key|access_?key|token|secret|password|passwd|sig|signature)=)[^&\s;,]+")
MASK = "***"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one document")


def main(namespace: argparse.Namespace) -> int:
    dump = describe(os.environ)
    if namespace.json:
        print(msgspec.json.encode({"schema": 1, **dump}).decode())
        return 0
    for title, values in dump.items():
        print(title)
        for name, value in values.items():
            print(f"  {name:<28}  {value}")
    return 0


def describe(environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    return {
        "holdfast": {"version": __version__, "python": facts.interpreter(environ), "launcher": sys.version},
        "machine": {
            "platform": platform.platform(),
            "processors": str(facts.cpu_count()),
            "memory available": f"{facts.available_bytes() / 2**30:.1f} GiB",
            "GPUs": str(facts.gpu_count(environ)),
        },
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "environment": {name: masked(name, environ[name]) for name in sorted(environ) if RELEVANT.fullmatch(name)},
    }


def masked(name: str, value: str) -> str:
    if _SECRET_NAME.search(name):
        return MASK if value else ""
    return _SECRET_ARGUMENT.sub(rf"\1{MASK}", _SECRET_IN_URL.sub(MASK, value))


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
