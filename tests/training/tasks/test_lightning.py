"""Test a LightningModule as a task, with a stand-in module and with Lightning itself."""

import importlib.util

import pytest
import torch
from torch import nn

from fedgc.config import RunConfig
from fedgc.errors import BadTask
from fedgc.training import CommonModel
from fedgc.training.tasks import from_lightning

INPUTS = torch.arange(24.0).reshape(12, 2) / 24
DATA = (INPUTS, INPUTS.sum(dim=1, keepdim=True))


class StandIn(nn.Module):
    """A module that logs as real ones do, and fails if logging needs a Trainer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def log(self, *_, **__):
        raise AssertionError("no Trainer hears this")

    log_dict = log

    def training_step(self, batch, number):
        loss = nn.functional.mse_loss(self.layer(batch[0]), batch[1])
        self.log("loss", loss, prog_bar=True)
        return {"loss": loss}

    def validation_step(self, batch, number):
        error = (self.layer(batch[0]) - batch[1]).abs().mean()
        self.log("error", error)
        self.log_dict({"batch": float(number)}, on_epoch=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.02, weight_decay=0.3)


KINDS = [StandIn]
if importlib.util.find_spec("lightning") is not None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of that package's own making
        from lightning import LightningModule

    class Real(LightningModule):
        """The same by Lightning's own class, whose `log` warns without a Trainer."""

        __init__ = lambda self: (LightningModule.__init__(self), setattr(self, "layer", nn.Linear(2, 1)))[0]  # noqa: E731  a class or a test of one line
        training_step = StandIn.training_step
        validation_step = StandIn.validation_step
        configure_optimizers = StandIn.configure_optimizers

    KINDS.append(Real)
else:
    KINDS.append(pytest.param(None, marks=pytest.mark.skip(reason="lightning is not there"), id="Real"))


@pytest.mark.parametrize("kind", KINDS)
def test_lightning_step_gives_loss_and_local_optimizer(kind):
    task = from_lightning(kind, DATA, RunConfig(chunks=3, work="coded"))
    module = task.model()
    loss = task.loss(module, DATA)
    assert torch.equal(loss, nn.functional.mse_loss(module.layer(DATA[0]), DATA[1]))
    optimizer = task.optimizer(list(module.parameters()), 99.0)
    own = module.configure_optimizers()
    assert type(optimizer) is type(own)
    assert optimizer.defaults == own.defaults
    assert optimizer.param_groups[0]["params"] == list(module.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_lightning_validation_logs_become_model_metrics(kind):
    batches = [tuple(column[:6] for column in DATA), tuple(column[6:] for column in DATA)]
    config = RunConfig(chunks=3, device="cpu", work="coded")
    task = from_lightning(kind, DATA, config, validation=batches)
    common = CommonModel(task, config)
    figures = common.evaluate(common.first())
    module = common.module(common.first())
    assert figures["error"] == pytest.approx((module.layer(DATA[0]) - DATA[1]).abs().mean().item(), rel=1e-5)
    assert figures["batch"] == 0.5


def test_module_without_validation_is_not_evaluated():
    task = from_lightning(StandIn, DATA, RunConfig(chunks=3, work="coded"))
    assert task.evaluate is None
    module = task.model()
    task.loss(module, DATA)
    assert "log" not in module.__dict__


def scheduled(self):
    optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
    return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


def grouped(self):
    return torch.optim.SGD([{"params": [self.layer.weight]}, {"params": [self.layer.bias]}], lr=0.1)


def test_parameter_that_optimizer_leaves_out_is_refused_unless_frozen():
    """As in the fine-tuning of a head."""

    class Part(StandIn):
        frozen = False

        def __init__(self):
            super().__init__()
            self.backbone = nn.Linear(2, 2).requires_grad_(not self.frozen)

        def configure_optimizers(self):
            return torch.optim.Adam(self.layer.parameters())

    with pytest.raises(
        BadTask, match=r"leaves out backbone\.weight, needed all parameters with requires_grad"
    ):
        from_lightning(Part, DATA, RunConfig(chunks=3, work="coded"))
    Part.frozen = True
    assert from_lightning(Part, DATA, RunConfig(chunks=3, work="coded")).sizes()


@pytest.mark.parametrize(("configured", "saw"), [(scheduled, "gave tuple"), (grouped, "gave 2 groups")])
def test_several_optimizers_are_refused_before_start(configured, saw):
    kind = type("Other", (StandIn,), {"configure_optimizers": configured})
    with pytest.raises(BadTask, match=saw):
        from_lightning(kind, DATA, RunConfig(chunks=3, work="coded"))
