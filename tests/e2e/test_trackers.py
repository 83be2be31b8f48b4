"""Trackers keep one run through a job's lives, with nothing in the script about it."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import kill

pytestmark = pytest.mark.e2e

SCRIPT = """
import os, time, torch, {imports}
parameter = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.AdamW([parameter])
{begin}
for step in range(40 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else 5):
    parameter.sum().backward()
    optimizer.step()
    {log}
    print("step", step)
    time.sleep(0.05)
{end}
"""


def survive(run, tmp_path, source, **environment):
    path = tmp_path / "script.py"
    path.write_text(source)
    job = run(path, env=environment)
    job.prints("step 10\n")
    kill(job.workers(1)[0])
    assert job.wait(120) == 0, job.stderr()
    assert job.state.incarnation == 2
    return job


def test_tensorboard_writes_into_one_folder(run, tmp_path):
    source = SCRIPT.format(
        imports="torch.utils.tensorboard as tb",
        begin="writer = tb.SummaryWriter()",
        log="writer.add_scalar('x', step, step)",
        end="writer.close()\nprint('folder', os.path.abspath(writer.log_dir))",
    )
    job = survive(run, tmp_path, source)
    (folder,) = (job.folder / "runs").iterdir()
    assert f"folder {folder}" in job.stdout()
    assert len(list(folder.iterdir())) == 2


def test_mlflow_goes_on_with_its_run(run, tmp_path):
    source = SCRIPT.format(
        imports="mlflow",
        begin="run = mlflow.start_run()\nprint('run', run.info.run_id)",
        log="mlflow.log_metric('x', step, step)",
        end="mlflow.end_run()",
    )
    job = survive(
        run, tmp_path, source, MLFLOW_TRACKING_URI=(tmp_path / "mlruns").as_uri(), MLFLOW_ALLOW_FILE_STORE="1"
    )
    runs = [line for line in job.stdout().splitlines() if line.startswith("run ")]
    assert len(runs) == 2
    assert len(set(runs)) == 1
