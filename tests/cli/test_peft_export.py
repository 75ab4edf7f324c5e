"""Test `fedgc model export --format peft`: PEFT itself loads the folder, and the model computes the same."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from fedgc.cli.commands import app
from fedgc.config import RunConfig
from fedgc.errors import Unusable
from fedgc.messages import Layout, TensorSpec
from fedgc.store import checkpoint
from fedgc.store.checkpoint import Checkpoint
from fedgc.store.database import Store
from fedgc.store.records import Begun, Ended
from fedgc.training.loop.model_state import ModelState
from fedgc.training.loop.ranks import Ranks
from tests.cli.test_follow import tell

pytestmark = pytest.mark.filterwarnings("ignore")
PLAIN = Layout((TensorSpec("w", "float32", (2,)),), 1)


def base() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def adapted(dtype: torch.dtype = torch.float32) -> ModelState:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, lora_alpha=8, target_modules=["0"], modules_to_save=["2"])
    state = ModelState(get_peft_model(base().to(dtype), config))
    state.bind()
    return state


def loss_of(model: nn.Module) -> float:
    inputs = torch.linspace(-1, 1, 40).view(10, 4)
    dtype = next(model.parameters()).dtype
    return float(nn.functional.cross_entropy(model.eval()(inputs.to(dtype)).float(), torch.arange(10) % 3))


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDGC_DB", str(tmp_path / "fedgc.db"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(layout: Layout, model: np.ndarray, config: RunConfig) -> None:
    """A run "r" with one version."""
    with Store.open() as store:
        store.write(Begun(1000.0, "r", config.table()))
        text = layout.text() if config.script else ""
        saved = Checkpoint(1, 1, model, b"", "{}", text)
        checkpoint.save(Path("fedgc/runs/r"), saved, keep=9)
        tell(store, 1)
        store.write(Ended(time.time(), "r", "completed"))


def export(*words: str) -> str:
    return CliRunner().invoke(app, ["model", "export", *words], catch_exceptions=False).stdout


def vector_of(layout: Layout) -> np.ndarray:
    return np.linspace(-0.5, 0.5, layout.size, dtype=np.float32)


def test_exported_adapter_gives_loss_of_common_model():
    from peft import PeftModel

    state = adapted()
    model = vector_of(state.layout)
    before = loss_of(state.module)
    state.write(model, Ranks())
    told(state.layout, model, RunConfig(script="train.py"))
    assert "version 1 of r, round 1, written to out" in export("out", "--format", "peft")
    assert sorted(each.name for each in Path("out").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    loaded = PeftModel.from_pretrained(base(), "out")
    assert loss_of(loaded) == pytest.approx(loss_of(state.module), abs=1e-6)
    assert abs(loss_of(loaded) - before) > 1e-3


def test_adapter_of_task_is_exported_without_announcement(monkeypatch: pytest.MonkeyPatch):
    from peft import PeftModel

    Path("adapted.py").write_text(
        "import torch\nfrom peft import LoraConfig, get_peft_model\nfrom fedgc import Task\n"
        "from tests.cli.test_peft_export import base\n"
        "def model():\n    return get_peft_model(base(), LoraConfig(r=2, target_modules=['0']))\n"
        "def task(config):\n"
        "    return Task(model=model, chunks={'a': 4}, load=lambda _: (torch.ones(4),),\n"
        "                loss=lambda model, batch: model(batch[0]).sum())\n"
    )
    monkeypatch.syspath_prepend(str(Path.cwd()))
    size = 2 * 4 + 6 * 2
    told(PLAIN, np.full(size, 0.25, np.float32), RunConfig(task="adapted:task"))
    export("out", "--format", "peft")
    loaded = PeftModel.from_pretrained(base(), "out")
    assert loaded.base_model.model[0].lora_B["default"].weight.unique().tolist() == [0.25]


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        (lambda _: PLAIN, "saw a model without an adapter of PEFT, needed one, or a file .safetensors"),
        (lambda found: replace(found, lacks="x.lora_A"), "x.lora_A of the adapter is not exchanged"),
        (lambda found: replace(found, names=("", *found.names[1:])), "lora_A.*which PEFT does not save"),
    ],
)
def test_model_that_is_no_whole_adapter_is_not_exported(layout, says: str):
    full = adapted().layout
    changed = layout(full.adapter)
    chosen = changed if isinstance(changed, Layout) else replace(full, adapter=changed)
    told(chosen, vector_of(chosen), RunConfig(script="train.py"))
    with pytest.raises(Unusable, match=says):
        export("out", "--format", "peft")
    assert not Path("out").exists()


def test_export_overwrites_nothing_and_knows_its_formats():
    told(PLAIN, vector_of(PLAIN), RunConfig(script="train.py"))
    Path("out").mkdir()
    with pytest.raises(Unusable, match="saw a file or folder, needed a new folder"):
        export("out", "--format", "peft")
    with pytest.raises(Unusable, match="--format: saw 'pfet', needed file or peft"):
        export("new", "--format", "pfet")
