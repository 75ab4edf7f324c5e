"""Test record-level privacy: what one record moves, what is drawn, and what each step is charged."""

import math
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedgc.errors import BadSetting, BadTask, EdgeFailed, TaskFailed
from fedgc.messages import Close, Report, Reveal
from fedgc.secagg.renyi import epsilon_of_releases
from fedgc.training import AccountFile, new_engine
from fedgc.training.pace import Pace
from fedgc.training.record_gradients import RecordGradients
from fedgc.training.record_privacy import RecordPrivacy
from fedgc.training.tasks import Task
from fedgc.training.trainer import LocalStep, Trainer
from tests.config_of import config_of

RECORDS = 40
INPUTS = torch.linspace(-1, 1, 3 * RECORDS).reshape(RECORDS, 3)
LABELS = (INPUTS.sum(dim=1) > 0).long()


def network():
    return nn.Sequential(
        nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 4, 2), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(8, 2)
    )


def loss(module, batch):
    return nn.functional.cross_entropy(module(batch[0]), batch[1])


def task_of(inputs=INPUTS, *, model=network, **more):
    data = (inputs, LABELS[: len(inputs)])
    return Task(model=model, chunks={"all": len(inputs)}, load=lambda _: data, loss=loss, **more)


def config(**more):
    table = {"work": "local", "gate": "every", "local_steps": 5, "batch_size": 8, "rounds": 4, "threads": 1}
    privacy = {"privacy_unit": "record", "privacy_noise": 1.0, "privacy_clip": 0.5}
    return config_of({**table, "device": "cpu", "shared_momentum": "off", **privacy, **more})


def test_sum_equals_individually_clipped_gradients():
    torch.manual_seed(1)
    module = network()
    module[1].bias.requires_grad_(False)
    trained = [each for each in module.parameters() if each.requires_grad]
    losses = [loss(module, (INPUTS[row : row + 1], LABELS[row : row + 1])) for row in range(RECORDS)]
    found = [torch.autograd.grad(each, trained) for each in losses]
    norms = [math.sqrt(sum(float(each.square().sum()) for each in record)) for record in found]
    clip = float(np.median(norms))
    RecordGradients(module, loss, clip).add((INPUTS, LABELS))
    for at, each in enumerate(trained):
        expected = sum(min(1.0, clip / norm) * one[at] for norm, one in zip(norms, found, strict=True))
        torch.testing.assert_close(each.grad, expected, atol=1e-5, rtol=1e-4)
    assert module[1].bias.grad is None


@given(row=st.integers(0, RECORDS - 1), value=st.floats(allow_nan=False, width=32), clip=st.floats(1e-3, 10))
@settings(max_examples=25)
def test_one_record_moves_sum_by_clip_at_most(row, value, clip):
    """Also one whose gradient overflows, which then counts nothing."""
    torch.manual_seed(1)
    module, other = network(), INPUTS.clone()
    other[row] = value
    gradients, rest = RecordGradients(module, loss, clip), torch.arange(RECORDS) != row
    sums = []
    for inputs, labels in ((other, LABELS), (other[rest], LABELS[rest])):
        gradients.add((inputs, labels))
        sums.append(torch.cat([each.grad.flatten() for each in module.parameters()]))
    assert float((sums[0] - sums[1]).norm()) <= clip * (1 + 1e-4) + 1e-4


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)),
            "saw 1, a BatchNorm1d",
        ),
        (lambda: nn.Linear(3, 2).bfloat16(), "saw running statistics or half precision"),
    ],
)
def test_model_that_mixes_records_is_refused(model, said):
    with pytest.raises(BadTask, match=said):
        Trainer(task_of(model=model), config()).protect(os.urandom)


def test_data_of_several_clients_are_refused():
    with pytest.raises(BadTask, match="whose records would spend the budgets of several clients"):
        Trainer(task_of(may_move=True), config()).protect(os.urandom)


def test_chunk_named_twice_is_not_sampled_twice():
    trainer = Trainer(task_of(), config())
    trainer.protect(os.urandom)
    with pytest.raises(TaskFailed, match="saw chunks all, all, needed each once"):
        trainer.load(("all", "all"))


def test_loss_with_branches_on_values_is_named():
    def branches(module, batch):
        found = loss(module, batch)
        return found if found > 1 else 2 * found

    with pytest.raises(TaskFailed, match="cannot be computed for single records"):
        RecordGradients(network(), branches, 1.0).add((INPUTS, LABELS))


def records_of(entropy=os.urandom, account=None, **more):
    chosen = config(**more)
    made = RecordPrivacy(chosen, RecordGradients(network(), loss, chosen.privacy_clip), entropy, account)
    made.begin(1000)
    return made


def test_records_are_sampled_independently_of_each_other():
    """The number in a step is binomial, and each record is drawn as often as any other."""
    records, drawn = records_of(lambda size: bytes(size), batch_size=100), np.zeros(1000)
    counts = []
    for _ in range(400):
        rows = records.sample(1000)
        assert len(np.unique(rows)) == len(rows)
        counts.append(len(rows))
        drawn[rows] += 1
    assert abs(np.mean(counts) - 100) < 5 * math.sqrt(90 / 400)
    assert abs(np.var(counts) / 90 - 1) < 5 * math.sqrt(2 / 400)
    assert np.abs(drawn - 40).max() < 6 * math.sqrt(36)


def test_sampling_and_noise_are_not_those_of_run():
    """A server knows the seed of the run, and must not know who was sampled."""
    moved = []
    for _ in range(2):
        trainer = Trainer(task_of(), config())
        trainer.protect(os.urandom)
        trainer.load(("all",))
        trainer.step(("all",), LocalStep((0, 0), 0))
        moved.append(trainer.flat.read())
    assert not np.array_equal(*moved)


def test_noise_of_step_is_multiple_of_clip_over_batch():
    class Still(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(40_000))

        def forward(self, inputs):
            return inputs[:, :2] + 0 * self.weight.sum()

    trainer = Trainer(task_of(model=Still), config(privacy_noise=2.0, learning_rate=1.0))
    trainer.protect(os.urandom)
    trainer.load(("all",))
    assert trainer.step(("all",), LocalStep((0, 0), 0)) == 0.0
    deviation = 2.0 * 0.5 / 8
    assert abs(trainer.flat.read().std() / deviation - 1) < 5 / math.sqrt(2 * 40_000)


# ---- what is charged


def engine_of(folder, *, left=None, **more):
    task = task_of(optimizer=lambda parameters, rate: torch.optim.Adam(parameters, rate))
    pace, account = Pace(lambda: 0.0, lambda _: None), AccountFile(folder / "account.json")
    leave = (lambda _: None) if left is None else left.append
    engine = new_engine(task, config(**more), pace, folder / "spill", account=account, leave=leave)
    engine.load(0, engine.initial())
    return engine


def work(bench, **more):
    return replace(bench.work((0,), names=((0, "all"),), target=5, **more), kind="local")


def epsilon_after(steps, noise=1.0):
    return epsilon_of_releases([(noise, 8 / RECORDS, steps)], 1e-6)


def test_discarded_step_is_charged_like_any_other(bench, tmp_path_factory):
    """Steps of a cut round, of a discarded one, and of a process that ended before."""
    folder = tmp_path_factory.mktemp("client")
    engine = engine_of(folder)
    engine.handle(work(bench))
    for _ in range(3):
        engine.step()
    assert engine.records.epsilon == pytest.approx(epsilon_after(3))
    engine.handle(Close("me", 1, "aborted", frees=True))
    engine.load(1, engine.initial())
    engine.handle(work(bench, round=2, version=1))
    (report,) = [each for each in bench.drain(engine) if isinstance(each, Report)]
    assert (report.steps, report.loss) == (5, 0.0)
    assert engine.answer(Reveal("me", 2, 0, "local", None)).vector is not None
    again = engine_of(folder)  # a new process, while the other one is gone without a word
    assert again.records.epsilon == pytest.approx(epsilon_after(8))
    for each in (engine, again):
        each.close()


def test_client_leaves_with_its_steps_before_budget_is_exceeded(bench, tmp_path_factory):
    left, folder = [], tmp_path_factory.mktemp("client")
    engine = engine_of(folder, left=left, privacy_epsilon=epsilon_after(3) + 1e-6)
    engine.handle(work(bench))
    for _ in range(10):
        engine.step()
    assert engine.records.epsilon == pytest.approx(epsilon_after(3))
    assert "the privacy budget of this client's records is spent" in left[0]
    engine.leave()
    (report,) = bench.drain(engine)
    assert report.steps == 3
    engine.close()
    assert engine_of(folder, privacy_epsilon=1.0).records.ending


def test_step_that_site_forbids_is_not_done():
    records = records_of()
    records.heed(lambda steps: "the site says no" if steps[0][2] > 2 else "")
    for _ in range(2):
        assert records.ending == ""
        records._charge()
    assert records.ending == "the site says no"
    records.deliver()
    assert records.ending == ""


def test_steps_of_killed_process_are_delivered_by_next(tmp_path):
    account = AccountFile(tmp_path / "account.json")
    first = records_of(account=account)
    for _ in range(2):
        first._charge()
    first.keep()
    second = records_of(account=account)
    assert second.undelivered == ((1.0, 8 / 1000, 2),)
    second.deliver()
    third = records_of(account=account)
    assert (third.undelivered, third.epsilon) == ((), second.epsilon)


def test_automatic_noise_spends_budget_of_run(bench, tmp_path_factory):
    engine = engine_of(tmp_path_factory.mktemp("client"), privacy_noise="auto", privacy_epsilon=3.0)
    for round_ in range(1, 5):
        engine.load(round_, engine.initial())
        engine.handle(work(bench, round=round_, version=round_))
        bench.drain(engine)
    assert engine.records.epsilon == pytest.approx(3.0, rel=1e-3)
    engine.close()


def test_damaged_account_is_refused(tmp_path):
    path = tmp_path / "account.json"
    account = AccountFile(path)
    account.put([(1.0, 0.5, 3)], [(1.0, 0.5, 2)])
    assert account.read() == (((1.0, 0.5, 3),), ((1.0, 0.5, 2),))
    assert path.stat().st_mode & 0o777 == 0o600
    for damaged in (path.read_bytes()[:-1], path.read_bytes().replace(b"3]", b"1]"), b""):
        path.write_bytes(damaged)
        with pytest.raises(EdgeFailed, match="what this client has spent of its privacy"):
            account.read()


def test_account_is_on_disk_before_update_leaves(tmp_path, monkeypatch):
    """Its bytes before its name, so that a loss of power leaves one account or the other."""
    synced, account = [], AccountFile(tmp_path / "accounts" / "account.json")
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_ino))
    account.put([(1.0, 0.5, 3)], [])
    folder = tmp_path / "accounts"
    assert synced == [path.stat().st_ino for path in (folder / "account.json", folder, tmp_path)]


def test_account_that_cannot_be_written_keeps_update(tmp_path):
    records = records_of(account=AccountFile(tmp_path / "accounts" / "account.json"))
    (tmp_path / "accounts").write_text("this is no folder")
    records._charge()
    with pytest.raises(EdgeFailed):
        records.keep()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"privacy_noise": "auto"}, "privacy.unit: saw record, needed privacy.epsilon or privacy.noise"),
        ({"work": "coded"}, "work: saw coded, needed local"),
        ({"gate": "loss-change"}, "gate.name: saw loss-change, needed a gate that reads no losses"),
        ({"script": "train.py"}, "script: saw train.py, needed a task"),
        ({"placement": "cyclic"}, "data.placement: saw cyclic, needed private"),
        ({"lockstep": "off"}, "gate.lockstep: saw off"),
        ({"privacy_noise": 1e-5}, "privacy.noise: saw 1e-05, needed at least 0.05, or auto, with"),
    ],
)
def test_settings_without_record_privacy_are_refused(more, said):
    with pytest.raises(BadSetting, match=said):
        config(**more)


def test_gate_with_distances_is_allowed_and_costs_nothing():
    chosen = config(gate="drift")
    assert (chosen.protects_records, chosen.is_private, chosen.most_steps) == (True, False, 0)
