"""The script every launcher is measured with: plain DDP over gloo that checkpoints every step and sleeps 50 ms in it.

It knows no launcher beyond the environment that all of them set. What the benchmark reads is its trace, one file per
rank, one line per write and nothing buffered:

    # PID RESTART_COUNT MONOTONIC_NS      a process begins
    STEP MONOTONIC_NS                     it has completed a step
    ! STEP CPU_NS                         CPU time it has used so far (at the steps named by --cpu-at)

CLOCK_MONOTONIC is one clock for all processes of a machine, so the benchmark can compare these times with its own.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Trace:
    def __init__(self, folder):
        path = os.path.join(folder, f"rank-{os.environ['RANK']}.trace")
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, *words):
        os.write(self._fd, (" ".join(map(str, words)) + "\n").encode())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True, help="where the trace and the checkpoint go")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--sleep", type=float, default=0.05, help="seconds in each step, in place of real work")
    parser.add_argument("--ballast-gb", type=float, default=0.0, help="memory touched in the first incarnation only")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--cpu-at", type=int, nargs="*", default=[])
    options = parser.parse_args()

    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    trace = Trace(options.folder)
    trace.write("#", os.getpid(), restarts, time.monotonic_ns())
    ballast = None
    if options.ballast_gb and restarts == 0:
        ballast = torch.full((int(options.ballast_gb * 2**30),), 1, dtype=torch.uint8)

    dist.init_process_group("gloo")
    device = torch.device(options.device, 0) if options.device == "cuda" else torch.device("cpu")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    checkpoint, step = os.path.join(options.folder, "checkpoint.pt"), 0
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint, map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    replica = DistributedDataParallel(model)

    while step < options.steps:
        inputs = torch.randn(16, 64, device=device)
        time.sleep(options.sleep)
        loss = replica(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if dist.get_rank() == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, checkpoint + ".tmp")
            os.replace(checkpoint + ".tmp", checkpoint)
        if device.type == "cuda":
            torch.cuda.synchronize()
        trace.write(step, time.monotonic_ns())
        if step in options.cpu_at:
            trace.write("!", step, time.process_time_ns())

    del ballast
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
