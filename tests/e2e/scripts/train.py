"""A plain DDP job: one AdamW step each 20 ms, a checkpoint by rank 0 after each. Knows nothing of Holdfast."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

steps = int(sys.argv[1])
trouble = sys.argv[2] if len(sys.argv) > 2 else ""
scratch = os.environ["SCRATCH"]
checkpoint = os.path.join(scratch, "checkpoint.pt")
life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(7)
model = nn.Linear(16, 16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
start = 0
if os.path.exists(checkpoint):
    if trouble == "die-restoring" and life == 1 and rank == 1:
        os.kill(os.getpid(), 9)
    saved = torch.load(checkpoint)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    start = saved["step"] + 1
parallel = DistributedDataParallel(model)
for step in range(start, steps):
    torch.manual_seed(1000 * step + rank)
    # Before the collective: no other rank can finish this step without us.
    if trouble == "raise" and step == 5 and rank == 1:
        raise ValueError("the loss ran away")
    if trouble == "raise-once" and step == 5 and rank == 1 and life == 0:
        raise ValueError("a passing cloud")
    loss = parallel(torch.randn(8, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0:
        draft = checkpoint + ".draft"
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, draft)
        if trouble == "die-saving" and step == 8 and life == 0:
            os.kill(os.getpid(), 9)
        os.replace(draft, checkpoint)
    time.sleep(0.02)
    print(f"rank {rank} step {step} loss {loss.item():.6f}")
dist.destroy_process_group()
print(f"rank {rank} finished at {steps} with {sum(p.sum().item() for p in model.parameters()):.9f}")
