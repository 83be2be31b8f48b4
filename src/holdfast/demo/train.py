"""An ordinary DDP training script: a small conv net learns to read handwritten digits.

It knows no launcher beyond the environment that torchrun and others set, and runs unchanged under any of them. It is
deterministic, so that two runs can be compared bit by bit: one thread per rank, deterministic operators, an order of
samples that follows from the seed alone, and checkpoints that carry the generator state of every rank.

Each rank appends to FOLDER/trace-RANK, one write per line, nothing buffered:

    begin PID RESTART_COUNT MONOTONIC_NS
    ready STEP RESTART_COUNT MONOTONIC_NS                  the group is formed and the state restored as of STEP
    step STEP LOSS SAMPLES RESTART_COUNT MONOTONIC_NS      STEP is complete; LOSS in hexadecimal, SAMPLES with commas
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

DIGITS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "digits.csv.gz")
DIGITS_SHA256 = "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22"
TRAINING = 1500  # the first samples; the others are held out


def main() -> None:
    options = arguments()
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    trace = Trace(options.trace or options.folder)
    trace.write("begin", os.getpid(), restarts, time.monotonic_ns())

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    images, labels = digits()
    torch.manual_seed(options.seed)
    model = network()
    torch.manual_seed(options.seed + 1 + rank)  # from here on every rank draws its own dropout
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.learning_rate, momentum=0.9)
    warm_up(replica)
    checkpoint = os.path.join(options.folder, "checkpoint.pt")
    step = restore(checkpoint, model, optimizer, rank)
    order = Order(options.seed, TRAINING)
    trace.write("ready", step, restarts, time.monotonic_ns())

    while step < options.steps:
        samples = order.batch(step, options.batch)[rank::world]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(replica(images[samples]), labels[samples])
        loss.backward()
        optimizer.step()
        step += 1
        places = ",".join(map(str, samples))
        trace.write("step", step, loss.item().hex(), places, restarts, time.monotonic_ns())
        if step % options.checkpoint_every == 0:
            save(checkpoint, model, optimizer, step, rank, world)

    if rank == 0:
        write_result(options.folder, model, images, labels, step)
    dist.destroy_process_group()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", required=True, help="where checkpoint and result go, and the trace by default")
    parser.add_argument("--trace", help="another folder for the trace")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=128, help="samples per step, over all ranks")
    parser.add_argument("--checkpoint-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--learning-rate", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


class Trace:
    """Lines survive the writer: each is one append, and none waits in a buffer."""

    def __init__(self, folder: str) -> None:
        path = os.path.join(folder, f"trace-{os.environ['RANK']}")
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, *words: object) -> None:
        os.write(self._fd, (" ".join(map(str, words)) + "\n").encode())


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Every image, scaled to [0, 1], and the digit it shows."""
    with open(DIGITS, "rb") as file:
        packed = file.read()
    if hashlib.sha256(packed).hexdigest() != DIGITS_SHA256:
        raise SystemExit(f"{DIGITS} is not the file that DIGITS.md describes")
    cells = bytearray(map(int, gzip.decompress(packed).replace(b"\n", b",").rstrip(b",").split(b",")))
    table = torch.frombuffer(cells, dtype=torch.uint8).reshape(-1, 65)
    return table[:, :64].reshape(-1, 1, 8, 8) / 16, table[:, 64].long()


def network() -> nn.Module:
    """151,306 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Dropout(0.25),
        nn.Linear(128, 10),
    )


class Order:
    """Which samples make up which step: one permutation per epoch, each drawn from seed and epoch, end to end."""

    def __init__(self, seed: int, samples: int) -> None:
        self._seed = seed
        self._samples = samples
        self._epochs: dict[int, list[int]] = {}

    def batch(self, step: int, size: int) -> list[int]:
        places = (divmod(step * size + offset, self._samples) for offset in range(size))
        return [self._permutation(epoch)[place] for epoch, place in places]

    def _permutation(self, epoch: int) -> list[int]:
        if epoch not in self._epochs:
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
            self._epochs[epoch] = torch.randperm(self._samples, generator=generator).tolist()
        return self._epochs[epoch]


def warm_up(replica: DistributedDataParallel) -> None:
    """Two passes that are thrown away.

    DDP arranges its buckets anew after the first pass. A resumed process would otherwise add up its first gradients in
    another order than a process that has been running, and from three ranks on the last bits would differ.
    """
    for _ in range(2):
        replica(torch.zeros(2, 1, 8, 8)).sum().backward()
    replica.zero_grad()


def restore(path: str, model: nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> int:
    """The step of the newest checkpoint; 0 when there is none."""
    if not os.path.exists(path):
        return 0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["generators"][rank])
    step: int = state["step"]
    return step


def save(path: str, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, rank: int, world: int) -> None:
    """Rank 0 writes for all, whole or not at all."""
    generator = torch.get_rng_state()
    generators = [torch.empty_like(generator) for _ in range(world)] if rank == 0 else None
    dist.gather(generator, generators)
    if generators is not None:
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "generators": generators,
            "step": step,
        }
        with open(f"{path}.draft", "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.draft", path)


def write_result(folder: str, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, step: int) -> None:
    model.eval()
    with torch.no_grad():
        right = (model(images[TRAINING:]).argmax(1) == labels[TRAINING:]).sum().item()
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(bytes(tensor.contiguous().flatten().view(torch.uint8).tolist()))
    result: dict[str, Any] = {
        "step": step,
        "weights_sha256": digest.hexdigest(),
        "held_out": len(labels) - TRAINING,
        "held_out_right": right,
        "torch": torch.__version__,
    }
    with open(os.path.join(folder, "result.json.draft"), "w", encoding="utf-8") as file:
        json.dump(result, file)
    os.replace(os.path.join(folder, "result.json.draft"), os.path.join(folder, "result.json"))


if __name__ == "__main__":
    main()
