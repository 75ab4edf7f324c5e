"""Test the Trainer of Lightning as a script of a client, from both of its packages.

The model's loss is minus the sum of its weights, so each optimizer step adds 1 to every weight.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.scripts.driven import Driven, told

SCRIPT = """
import json, time
import torch
import PACKAGE as pl
from torch.utils.data import DataLoader
import fedgc

class Counting(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(4))

    def training_step(self, batch, _):
        loss = -self.weight.sum() * batch.mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)

class Seen(pl.Callback):
    batches = 0

    def on_train_batch_end(self, trainer, *_):
        Seen.batches += 1
        time.sleep(0.02)
        trainer.should_stop = trainer.should_stop or trainer.global_step == STOP

model = Counting()
fed = fedgc.join(model)
checkpoints = pl.callbacks.ModelCheckpoint(FOLDER, every_n_train_steps=2, save_top_k=-1)
trainer = pl.Trainer(
    max_epochs=1, min_epochs=1, accumulate_grad_batches=2, precision="bf16-mixed", accelerator="cpu",
    callbacks=[Seen(), fedgc.lightning.Callback(fed), checkpoints], log_every_n_steps=1, logger=False,
    enable_progress_bar=False, enable_model_summary=False, default_root_dir=FOLDER,
)
trainer.fit(model, DataLoader(torch.ones(12, 1), 2))
told = {
    "steps": trainer.global_step, "batches": Seen.batches, "weight": model.weight.tolist(),
    "loss": float(trainer.callback_metrics["loss"]), "global_step": fed.global_step,
}
print("told", json.dumps(told))
"""
PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def script(folder: Path, package: str = PACKAGES[0], stop: int = -1) -> Path:
    path = folder / "script.py"
    text = SCRIPT.replace("PACKAGE", package).replace("FOLDER", repr(str(folder / "saved")))
    path.write_text(text.replace("STOP", str(stop)))
    return path


@pytest.mark.parametrize("package", PACKAGES)
def test_partial_work_is_handed_in_within_epoch_and_trainer_goes_on(package: str, tmp_path: Path):
    with Driven(script(tmp_path, package), tmp_path) as client:
        assert dict(client.loop.sizes) == {"north": 12}, "the length of the loader's dataset"
        client.begin(fill=5.0)
        vector, first = client.handed(client.steps(4))
        np.testing.assert_array_equal(vector, np.full(4, 5.0 + first, np.float32))
        client.begin(fill=100.0)
        vector, second = client.handed(client.steps(7))
        np.testing.assert_array_equal(vector, np.full(4, 100.0 + second, np.float32))
        seen = told(client.words())
    steps = first + second
    assert (seen["steps"], seen["batches"]) == (steps, 2 * steps), "max_epochs=1 is the user's own"
    assert seen["weight"] == [100.0 + second] * 4
    assert seen["loss"] == -4 * (100.0 + second - 1)
    assert len(list((tmp_path / "saved").glob("*.ckpt"))) == steps // 2


def test_reported_loss_is_per_batch_with_accumulation(tmp_path: Path):
    with Driven(script(tmp_path), tmp_path) as client:
        client.begin(fill=5.0, target=1)
        client.steps(1)
        assert client.losses == -4 * 5.0


def test_trainer_alone_ends_at_its_own_limit(tmp_path: Path):
    done = subprocess.run([sys.executable, script(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    seen = told(done.stdout)
    assert (seen["steps"], seen["weight"]) == (3, [3.0] * 4)
    assert seen["global_step"] == 3, "schedules go by it outside a federation too"


def test_early_stop_hands_in_and_leaves(tmp_path: Path):
    with Driven(script(tmp_path, stop=5), tmp_path) as client:
        client.begin(fill=0.0)
        vector, steps = client.handed(client.steps(5))
        assert (vector.tolist(), steps) == ([5.0] * 4, 5)
        assert told(client.words())["steps"] == 5


def test_sigterm_hands_in_and_leaves(tmp_path: Path):
    with Driven(script(tmp_path), tmp_path) as client:
        client.begin(fill=0.0)
        reached = client.steps(4)
        os.kill(client.pid(), signal.SIGTERM)
        client.wait_for_leave()
        vector, steps = client.handed(reached)
        np.testing.assert_array_equal(vector, np.full(4, steps, np.float32))
