"""Scripts of other frameworks, as their own guides have them, through a kill. None of them knows Holdfast."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import kill

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

FSDP2 = """
import os, time, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
for layer in (model[0], model[2]):
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters())
folder = os.environ["SCRATCH"] + "/fsdp"
start = 0
names = os.listdir(os.environ["SCRATCH"])
marks = sorted(int(n.split("-")[1]) for n in names if n.startswith("fsdp-") and n.endswith("-ok"))
if marks:
    start = marks[-1] + 1
    state, optim = get_state_dict(model, optimizer)
    content = {"model": state, "optim": optim}
    dcp.load(content, checkpoint_id=f"{folder}-{marks[-1]}")
    set_state_dict(model, optimizer, model_state_dict=content["model"], optim_state_dict=content["optim"])
for step in range(start, 30):
    model(torch.randn(4, 16)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 5 == 0:
        state, optim = get_state_dict(model, optimizer)
        dcp.save({"model": state, "optim": optim}, checkpoint_id=f"{folder}-{step}")
        if dist.get_rank() == 0:
            open(f"{folder}-{step}-ok", "w").close()
    print(f"rank {dist.get_rank()} step {step}", flush=True)
    time.sleep(0.05)
dist.barrier()
dist.destroy_process_group()
print("finished from", start)
"""

LIGHTNING = """
import os, time, torch, warnings
warnings.simplefilter("ignore")
import lightning as L
from torch.utils.data import DataLoader, TensorDataset

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def training_step(self, batch, index):
        time.sleep(0.05)
        print(f"rank {self.global_rank} step {self.global_step}", flush=True)
        return self.layer(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

folder = os.environ["SCRATCH"] + "/lightning"
data = DataLoader(TensorDataset(torch.randn(160, 8)), batch_size=4)
saver = L.pytorch.callbacks.ModelCheckpoint(dirpath=folder, every_n_train_steps=2, save_last=True)
trainer = L.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_steps=30, max_epochs=10, callbacks=[saver],
                    logger=False, enable_progress_bar=False, enable_model_summary=False)
last = folder + "/last.ckpt"
trainer.fit(Model(), data, ckpt_path=last if os.path.exists(last) else None)
print("finished at", trainer.global_step)
"""

TRAINER = """
import os, time, torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def forward(self, x):
        return {"loss": self.layer(x).square().mean()}

class Tell(TrainerCallback):
    def on_step_end(self, args, state, control, **rest):
        time.sleep(0.05)
        print(f"rank {os.environ['RANK']} step {state.global_step}", flush=True)

folder = os.environ["SCRATCH"] + "/trainer"
data = [{"x": torch.randn(8)} for _ in range(400)]
arguments = TrainingArguments(folder, max_steps=30, per_device_train_batch_size=4, save_steps=3, report_to=[],
                              use_cpu=True, disable_tqdm=True, logging_strategy="no")
trainer = Trainer(Model(), arguments, train_dataset=data, callbacks=[Tell()])
last = get_last_checkpoint(folder) if os.path.isdir(folder) else None
trainer.train(resume_from_checkpoint=last)
print("finished at", trainer.state.global_step)
"""

ACCELERATE = """
import os, time, torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.DataLoader(torch.randn(400, 8), batch_size=4)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
folder = os.environ["SCRATCH"] + "/accelerate"
start = 0
if os.path.exists(folder + "/done"):
    start = int(open(folder + "/done").read())
    accelerator.load_state(folder)
step = start
while step < 30:
    for batch in data:
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        print(f"rank {accelerator.process_index} step {step}", flush=True)
        if step % 10 == 0:
            accelerator.save_state(folder)
            if accelerator.is_main_process:
                open(folder + "/done", "w").write(str(step))
            accelerator.wait_for_everyone()
        time.sleep(0.05)
        if step == 30:
            break
accelerator.end_training()
print("finished at", step)
"""


@pytest.mark.parametrize(
    ("source", "before"),
    [(FSDP2, 12), (LIGHTNING, 13), (TRAINER, 13), (ACCELERATE, 14)],
    ids=["fsdp2", "lightning", "trainer", "accelerate"],
)
def test_a_frameworks_own_script_survives_a_kill(run, tmp_path, source, before):
    # `before` is no step at which the script saves: a framework whose save is not atomic would find a torn checkpoint.
    path = tmp_path / "script.py"
    path.write_text(source)
    job = run("--nproc-per-node", 2, path)
    job.prints(f"rank 1 step {before}", 120)
    kill(job.workers(2)[1])
    assert job.wait(200) == 0, job.stderr() + job.stdout()
    assert job.stdout().count("finished") == 2
    incident = job.state.incidents["1"]
    assert incident.outcome == "recovered"
    assert incident.resumed_from is not None
    assert 0 < incident.resumed_from <= before + 2
