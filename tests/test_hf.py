"""Test the Trainer of transformers as a script of a client.

The model's loss is minus the sum of its weights, so each optimizer step adds 1 to every weight.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import TrainerControl, TrainerState, TrainingArguments

import fedgc
from fedgc.config import RunConfig
from fedgc.errors import BadTask
from fedgc.training.loop.environment import ScriptEnvironment
from fedgc.training.loop.model_state import ModelState
from fedgc.training.loop.training_loop import TrainingLoop
from tests.scripts.driven import Driven, told

SCRIPT = """
import json, sys, time
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
import fedgc

class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(4))

    def forward(self, x):
        return {"loss": -self.weight.sum() * x.mean()}

class Seen(TrainerCallback):
    steps = 0

    def on_step_end(self, *_, **__):
        Seen.steps += 1
        time.sleep(0.02)

model = Counting()
fed = fedgc.join(model)
arguments = TrainingArguments(
    FOLDER, max_steps=3, per_device_train_batch_size=2, gradient_accumulation_steps=2, bf16=True,
    use_cpu=True,
    optim="sgd", learning_rate=1.0, lr_scheduler_type="constant", max_grad_norm=0.0, logging_steps=1,
    save_steps=2, save_total_limit=2, report_to="none", disable_tqdm=True, dataloader_drop_last=True,
)
trainer = Trainer(
    model, arguments, train_dataset=[{"x": torch.ones(1)}] * 14, callbacks=[Seen(), CALLBACK]
)
said = trainer.train()
told = {
    "steps": trainer.state.global_step, "max": trainer.state.max_steps, "seen": Seen.steps,
    "weight": model.weight.tolist(), "global_step": fed.global_step,
    "losses": [row["loss"] for row in trainer.state.log_history if "loss" in row],
    "rate": said.metrics["train_samples_per_second"] / said.metrics["train_steps_per_second"],
    "timed": said.metrics["train_steps_per_second"] * said.metrics["train_runtime"],
}
print("told", json.dumps(told))
"""
CALLBACK = "fedgc.hf.Callback(fed)"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    text = SCRIPT.replace("FOLDER", repr(str(tmp_path / "saved")))
    path.write_text(text.replace("CALLBACK", CALLBACK))
    return path


def checkpoints(folder: Path) -> set[int]:
    return {int(path.name.rpartition("-")[2]) for path in (folder / "saved").glob("checkpoint-*")}


def test_partial_work_is_handed_in_within_epoch_and_trainer_goes_on(script: Path, tmp_path: Path):
    with Driven(script, tmp_path) as client:
        assert dict(client.loop.sizes) == {"north": 14}, "the length of the Trainer's dataset"
        client.begin(fill=5.0)
        vector, first = client.handed(client.steps(4))
        np.testing.assert_array_equal(vector, np.full(4, 5.0 + first, np.float32))
        client.begin(fill=100.0)
        vector, second = client.handed(client.steps(8))
        np.testing.assert_array_equal(vector, np.full(4, 100.0 + second, np.float32))
        seen = told(client.words())
    steps = first + second
    assert (seen["steps"], seen["max"], seen["seen"]) == (steps, steps, steps), (
        "max_steps=3 is the user's own"
    )
    assert seen["weight"] == [100.0 + second] * 4
    assert seen["losses"][:2] == [-4 * 5.0, -4 * 6.0]
    assert seen["rate"] == pytest.approx(4.0, rel=0.01)
    assert steps in checkpoints(tmp_path), "the Trainer saves at its end"


def test_progress_bar_ends_with_steps_of_run(script: Path, tmp_path: Path):
    script.write_text(script.read_text().replace("disable_tqdm=True", "disable_tqdm=False"))
    with Driven(script, tmp_path) as client:
        client.begin(fill=5.0)
        client.handed(client.steps(4))
        words = client.words()
    run = RunConfig()
    assert f"/{run.rounds * run.round_steps} [" in words
    assert told(words)["steps"] >= 4, "the bar's end is not the Trainer's"


def test_trainer_alone_ends_at_its_own_limit(script: Path, tmp_path: Path):
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    seen = told(done.stdout)
    assert (seen["steps"], seen["weight"]) == (3, [3.0] * 4)
    assert seen["global_step"] == 3, "schedules go by it outside a federation too"
    assert checkpoints(tmp_path) == {2, 3}


def test_callback_that_is_added_late_warns_and_leaves_at_limit(script: Path, tmp_path: Path):
    text = script.read_text().replace(f", {CALLBACK}", "")
    script.write_text(text.replace("said =", f"trainer.add_callback({CALLBACK})\nsaid ="))
    with Driven(script, tmp_path) as client:
        client.begin(fill=5.0)
        vector, steps = client.handed(client.steps(3))
        words = client.words()
    assert (vector.tolist(), steps) == ([8.0] * 4, 3)
    assert "the Trainer ends after 3 steps, and then this client leaves the run" in words


@pytest.mark.parametrize(("strategy", "is_last"), [("steps", False), ("epoch", True)])
def test_early_stop_hands_in_model_before_best_is_loaded(
    script: Path, tmp_path: Path, strategy: str, is_last: bool
):
    """Each evaluation is worse than the first; an epoch has 3 steps."""
    early = "EarlyStoppingCallback(early_stopping_patience=1)"
    order = f"{early}, {CALLBACK}" if is_last else f"{CALLBACK}, {early}"
    best = f'eval_strategy="{strategy}", save_strategy="{strategy}", eval_steps=3, save_steps=3,'
    text = script.read_text()
    for old, new in (
        ("TrainerCallback,", "TrainerCallback, EarlyStoppingCallback,"),
        ("forward(self, x)", "forward(self, x, labels=None)"),
        ("-self.weight.sum() *", "(-1 if self.training else 1) * self.weight.sum() *"),
        ('"x": torch.ones(1)', '"x": torch.ones(1), "labels": torch.ones(1)'),
        ("save_steps=2,", f'{best} load_best_model_at_end=True, label_names=["labels"],'),
        ("save_total_limit=2,", ""),
        ("* 14,", '* 12, eval_dataset=[{"x": torch.ones(1), "labels": torch.ones(1)}] * 8,'),
        (CALLBACK, order),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    script.write_text(text)
    with Driven(script, tmp_path) as client:
        client.begin(fill=5.0)
        client.wait_for_leave()
        vector, steps = client.handed(0)
        words = client.words()
    assert (vector.tolist(), steps) == ([11.0] * 4, 6)
    assert told(words)["weight"] == [8.0] * 4, "the Trainer loads its best model"
    assert told(words)["timed"] == pytest.approx(6, rel=0.01), "steps, of which there is no end"


def test_best_model_that_would_be_handed_in_is_refused(tmp_path: Path):
    environment = ScriptEnvironment("", "", RunConfig().table(), {}, str(tmp_path))
    fed = TrainingLoop(ModelState(torch.nn.Linear(2, 1)), environment, None, 1, None, None)
    best = {"save_strategy": "best", "eval_strategy": "epoch", "metric_for_best_model": "loss"}
    arguments = TrainingArguments(
        str(tmp_path), load_best_model_at_end=True, report_to="none", use_cpu=True, **best
    )
    with pytest.raises(
        BadTask, match="save_strategy=best and eval_strategy=epoch, needed save_strategy=epoch"
    ):
        fedgc.hf.Callback(fed).on_init_end(arguments, TrainerState(), TrainerControl())


def test_shares_of_unknown_number_of_steps_are_refused(tmp_path: Path):
    environment = ScriptEnvironment("", "", RunConfig().table(), {}, str(tmp_path))
    fed = TrainingLoop(ModelState(torch.nn.Linear(2, 1)), environment, None, 1, None, None)
    arguments = TrainingArguments(str(tmp_path), warmup_steps=0.1, report_to="none", use_cpu=True)
    with pytest.raises(BadTask, match=r"saw warmup_steps=0\.1, a share of the Trainer's own steps"):
        fedgc.hf.Callback(fed).on_init_end(arguments, TrainerState(), TrainerControl())
