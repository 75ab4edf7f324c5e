"""Test clients that are trained as one batch of models: the results of training them one by one."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fedgc.errors import BadSetting, BadTask, EdgeFailed
from fedgc.sim.clock import working
from fedgc.sim.training import Job, train
from fedgc.training.tasks import Task, over
from tests.sim import uneven_clients
from tests.sim.uneven_clients import CLIENTS, ROUNDS, data, loss, uneven

settings = partial(uneven_clients.settings, local_steps=6, evaluate_every=0)

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def convolutions() -> nn.Module:
    layers = (
        nn.Unflatten(1, (1, 4, 2)),
        nn.Conv2d(1, 4, 2),
        nn.GroupNorm(2, 4),
        nn.Flatten(),
        nn.Linear(12, 3),
    )
    return nn.Sequential(*layers)


def task(model=network, **changes) -> Task:
    made = over(data(), settings(), model=model, loss=loss, optimizer=changes.pop("optimizer", None))
    return replace(made, **changes)


def both(made: Task, stack=CLIENTS, **changes):
    """Train one by one, and as a stack."""
    job = Job(made, settings(**changes), uneven(), owned=True)
    return train(job), train(replace(job, stack=stack))


def agree(alone, stacked, atol=2e-5, loss=1e-5):
    assert any(len({each.steps for each in point.row.clients}) > 1 for point in alone.points), "partial work"
    for one, other in zip(alone.points, stacked.points, strict=True):
        assert one.seconds == other.seconds
        assert one.row.outcome == other.row.outcome
        assert one.row.loss == pytest.approx(other.row.loss, abs=loss)
        for mine, theirs in zip(one.row.clients, other.row.clients, strict=True):
            assert (mine.steps, mine.counted) == (theirs.steps, theirs.counted)
    np.testing.assert_allclose(stacked.model, alone.model, rtol=0, atol=atol)


OPTIMIZERS = {
    "momentum": partial(torch.optim.SGD, momentum=0.9, nesterov=True),
    "AdamW": partial(torch.optim.AdamW, weight_decay=0.01),
    "NAdam": torch.optim.NAdam,
    "RMSprop": partial(torch.optim.RMSprop, centered=True, momentum=0.5),
    "Adam": partial(torch.optim.Adam, amsgrad=True),
}


def with_rate(kind):
    return lambda parameters, rate: kind(parameters, lr=rate)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model", [network, convolutions])
def test_stack_agrees_with_one_by_one(model, device):
    agree(*both(task(model), device=device))


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_stack_agrees_with_optimizer_of_task(kind):
    made = task(convolutions, optimizer=with_rate(OPTIMIZERS[kind]))
    agree(*both(made, learning_rate=0.01))


@pytest.mark.parametrize(
    "changes",
    [
        {"shared_momentum": "off"},
        {"shared_momentum": 0.5},
        {"gate": "relative-change"},
        {"codec": "int8"},
        {"schedule": "cosine"},
        {"precision": "bf16"},
    ],
    ids=str,
)
def test_stack_agrees_with_setting(changes):
    coarse = {"atol": 2e-3, "loss": 1e-3} if changes.keys() & {"codec", "precision"} else {}
    agree(*both(task(convolutions), **changes), **coarse)


@pytest.mark.parametrize("stack", [2, 3, 100])
def test_stack_of_any_size_agrees(stack):
    agree(*both(task(), stack=stack))


def test_stack_keeps_private_layers():
    agree(*both(task(private=("3.*",))))


def test_stack_trains_batches_of_dataset():
    class Rows(torch.utils.data.Dataset):
        def __init__(self, columns):
            self.columns = columns

        def __len__(self):
            return len(self.columns[0])

        def __getitem__(self, row):
            return {"inputs": self.columns[0][row], "labels": self.columns[1][row]}

    def of_names(module, batch):
        return nn.functional.cross_entropy(module(batch["inputs"]), batch["labels"])

    made = task()
    agree(*both(replace(made, load=lambda name: Rows(made.load(name)), loss=of_names)))


class Words(nn.Module):
    """The padding is the word 0, and its row is not zero."""

    def __init__(self):
        super().__init__()
        self.rows, self.out = nn.Embedding(5, 4, padding_idx=0), nn.Linear(4, 3)
        nn.init.normal_(self.rows.weight)

    def forward(self, inputs):
        return self.out(self.rows(inputs.abs().long().clamp(max=4)).mean(1))


def test_stack_does_not_train_padding_of_embedding():
    alone, stacked = both(task(Words))
    agree(alone, stacked)
    first = train(Job(task(Words), settings(rounds=1, gate="every", gate_period=1), uneven(), owned=True))
    assert np.array_equal(stacked.model[:4], first.model[:4]), "the row of the padding"
    assert not np.array_equal(stacked.model[4:8], first.model[4:8])


class Dropped(nn.Module):
    def __init__(self):
        super().__init__()
        self.units = nn.Parameter(torch.zeros(64))

    def forward(self, inputs):
        return nn.functional.dropout(self.units, 0.5) + 0 * inputs.sum()


def test_stack_draws_dropout_for_each_client():
    """A unit moves by as many of the clients as have kept it."""
    made = task(Dropped, loss=lambda module, batch: module(batch[0]).sum())
    config = settings(rounds=1, local_steps=1, gate_period=1, learning_rate=0.5, shared_momentum="off")
    job = Job(made, config, (working([[1.0]] * CLIENTS),), owned=True, stack=CLIENTS)
    models = [train(job).model, train(job).model]
    assert np.array_equal(*models), "the same draws each time"
    kept = -models[0] * CLIENTS
    assert np.allclose(kept, np.round(kept), atol=1e-5)
    assert {1, 2, 3, 4, 5} <= set(np.round(kept).astype(int).tolist())


def test_failure_of_one_client_names_it():
    made = task()

    infinite = list(made.sizes())[3]

    def load(name):
        inputs, labels = map(torch.as_tensor, made.load(name))
        return (torch.full_like(inputs, torch.inf) if name == infinite else inputs), labels

    bad = replace(made, load=load)
    with pytest.raises(EdgeFailed, match=r"client 3, round 1: the loss is (nan|inf), needed a number"):
        train(Job(bad, settings(), uneven(), owned=True, stack=CLIENTS))


def test_layer_that_vmap_cannot_batch_is_refused():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.cells = nn.GRU(8, 3)

        def forward(self, inputs):
            return self.cells(inputs[None])[0][0]

    with pytest.raises(EdgeFailed, match=r"aten::gru.*needed a loss that torch.func.vmap can batch"):
        train(Job(task(Recurrent), settings(), uneven(), owned=True, stack=CLIENTS))


def test_loss_that_reads_values_is_refused():
    def reads(module, batch):
        found = loss(module, batch)
        return found * 2 if found.item() > 1 else found

    with pytest.raises(EdgeFailed, match=r"vmap.*item.*needed a loss that torch.func.vmap can batch"):
        train(Job(replace(task(), loss=reads), settings(), uneven(), owned=True, stack=CLIENTS))


def test_stack_that_does_not_fit_is_named():
    steps = iter(range(6))  # of the first client, which is trained alone

    def large(module, batch):
        if next(steps, None) is None:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return loss(module, batch)

    with pytest.raises(
        EdgeFailed, match=r"a stack of \d clients does not fit into the device's memory, needed"
    ):
        train(Job(replace(task(), loss=large), settings(), uneven(), owned=True, stack=CLIENTS))


def by_shape(parameters, rate, size=torch.Tensor.dim, least=2):
    groups = [[each for each in parameters if (size(each) >= least) is wide] for wide in (True, False)]
    return torch.optim.SGD([{"params": each} for each in groups], lr=rate)


def clipping(parameters, rate):
    made = torch.optim.SGD(parameters, lr=rate)
    made.register_step_pre_hook(lambda *_: nn.utils.clip_grad_norm_(parameters, 1.0))
    return made


def hooked() -> nn.Module:
    made = network()
    made[0].weight.register_hook(torch.neg)
    return made


@pytest.mark.parametrize(
    ("made", "needed"),
    [
        (
            task(optimizer=lambda parameters, rate: torch.optim.LBFGS(parameters, lr=rate)),
            "LBFGS, needed one",
        ),
        (task(optimizer=by_shape), "divides parameters by their shapes"),
        (
            task(optimizer=partial(by_shape, size=torch.Tensor.numel, least=20)),
            "divides parameters by their shapes",
        ),
        (task(optimizer=clipping), "hook of the optimizer's step"),
        (task(hooked), "hook of the parameter 0.weight"),
        (
            task(optimizer=lambda parameters, rate: torch.optim.Adam(parameters, lr=rate, capturable=True)),
            "fused or capturable",
        ),
        (task(lambda: network().bfloat16()), "half precision in the model, needed float32"),
    ],
)
def test_task_that_stack_would_train_differently_is_refused(made, needed):
    with pytest.raises(BadTask, match=needed):
        train(Job(made, settings(), uneven(), owned=True, stack=CLIENTS))


class Counted(nn.Module):
    """It has a temperature, which is a parameter of one number, and an empty buffer."""

    def __init__(self):
        super().__init__()
        self.out, self.temperature = nn.Linear(8, 3), nn.Parameter(torch.tensor(1.0))
        self.register_buffer("seen", torch.tensor(0.0))
        self.register_buffer("none", torch.zeros(0))

    def forward(self, inputs):
        self.seen += 1
        return self.out(inputs) * self.temperature


@pytest.mark.parametrize("gate", ["every", "relative-change"])
def test_stack_trains_tensors_of_one_number_and_none(gate):
    agree(*both(task(Counted), gate=gate))


def test_buffer_that_module_assigns_is_refused():
    class Assigning(Counted):
        def forward(self, inputs):
            self.seen = self.seen + 1
            return self.out(inputs)

    with pytest.raises(EdgeFailed, match="client 0, round 1: stack: saw the buffer seen assigned, needed it"):
        train(Job(task(Assigning), settings(), uneven(), owned=True, stack=CLIENTS))


def test_stack_trains_module_that_evaluation_has_left_in_its_mode():
    model = network()
    first = {name: each.clone() for name, each in model.state_dict().items()}

    def same() -> nn.Module:
        model.load_state_dict(first)
        return model

    def evaluate(module):
        return {"mode": float(module.eval().training)}

    agree(*both(task(same, evaluate=evaluate), evaluate_every=1))


class Damaged(torch.utils.data.Dataset):
    """Some rows of a dataset cannot be read."""

    def __init__(self, columns, damaged=()):
        self.columns, self.damaged = columns, damaged

    def __len__(self):
        return len(self.columns[0])

    def __getitem__(self, row):
        if row in self.damaged:
            raise ValueError(f"damaged row {row}")
        return self.columns[0][row], self.columns[1][row]


def test_unreadable_row_names_its_client():
    made = task()
    bad = list(made.sizes())[3]
    damaged = replace(
        made, load=lambda name: Damaged(made.load(name), range(30) if name == bad else ()), private=()
    )
    with pytest.raises(EdgeFailed, match=r"client 3, round 1: ValueError: damaged row \d+"):
        train(Job(damaged, settings(), uneven(), owned=True, stack=CLIENTS))


def test_stack_reads_only_samples_of_steps_that_are_ordered():
    read = []

    class Reading(Damaged):
        def __getitem__(self, row):
            read.append(row)
            return super().__getitem__(row)

    made = task()
    counted = replace(made, load=lambda name: Reading(made.load(name)))
    job = Job(
        counted, settings(lockstep="on", gate_period=1), (working([[1.0]] * CLIENTS),) * ROUNDS, owned=True
    )
    train(job)
    alone = len(read)
    train(replace(job, stack=CLIENTS))
    assert len(read) == 2 * alone


def test_stack_needs_local_work_in_one_process():
    with pytest.raises(BadSetting, match="with 2 processes, needed local work in this process"):
        Job(task(), settings(), uneven(), make=task, workers=2, stack=4)
    with pytest.raises(BadSetting, match="with coded work, needed local"):
        Job(task(), settings(work="coded", chunks=6), uneven(), stack=4)
