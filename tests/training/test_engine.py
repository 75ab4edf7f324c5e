from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from fedgc.config import RunConfig
from fedgc.errors import BadMessage, BadSetting, BadTask, BadVector, NotHere
from fedgc.messages import Close, Continue, Failed, Held, Kept, Mix, Progress, Skip, Take
from fedgc.training.data import batch_rows
from fedgc.training.randomness import key

ALL = range(5)


def reported_alone(bench, task, chunk, target, *, seed=5, version=0):
    """Slow reference: a new engine that trains only this chunk."""
    engine = bench.engine(task, version=version)
    engine.handle(bench.work([chunk], target=target, seed=seed, version=version))
    [progress] = bench.drain(engine)
    return progress, engine.codeword(Mix((chunk,), ((1.0,),)))


def alone(bench, task, chunk, target, **options):
    return reported_alone(bench, task, chunk, target, **options)[1]


def updates(engine, chunks=ALL):
    return {chunk: engine.codeword(Mix((chunk,), ((1.0,),))) for chunk in chunks}


# ---- what training gives


def test_update_is_samples_times_step_of_plain_script(bench, small):
    task = replace(small, model=lambda: nn.Linear(6, 2), optimizer=None)
    engine = bench.engine(task)
    start = bench.vector(engine.size)
    engine.handle(bench.work([2], target=3))
    [progress] = bench.drain(engine)

    module = nn.Linear(6, 2)
    nn.utils.vector_to_parameters(torch.tensor(start), module.parameters())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    inputs, labels = small.load("c2")
    losses = []
    for step in range(3):
        rows = torch.tensor(batch_rows(17, 10, step, key(5, 0, 2, "order")))
        loss = small.loss(module, (inputs[rows], labels[rows]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    step = start - nn.utils.parameters_to_vector(module.parameters()).detach().numpy()

    assert np.allclose(engine.codeword(Mix((2,), ((1.0,),))), 17 * step, atol=1e-6)
    assert progress.samples == 17
    assert progress.reached == 3
    assert progress.loss == pytest.approx(np.mean(losses))
    assert progress.squared_norm == pytest.approx(float(step @ step), rel=1e-4)


def test_every_chunk_is_reported_once_in_order(bench, small):
    engine = bench.engine(small)
    engine.handle(bench.work([3, 0, 4]))
    said = bench.drain(engine)
    assert [event.chunk for event in said] == [3, 0, 4]
    assert all(isinstance(event, Progress) and event.round == 1 and event.client == "me" for event in said)


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.integers(1, 6)),
        st.tuples(st.just("skip"), st.integers(0, 4)),
        st.tuples(st.just("take"), st.integers(0, 4)),
        st.tuples(st.just("continue"), st.integers(0, 2)),
        st.tuples(st.just("work"), st.integers(0, 2)),
    ),
    max_size=14,
)


@given(ACTIONS, st.permutations(ALL), st.booleans())
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_chunk_update_is_independent_of_order_pauses_and_client(bench, small, actions, order, lockstep):
    engine = bench.engine(small)
    number, target = 1, 2
    engine.handle(bench.work(order, target=target, lockstep=lockstep))
    for action, value in actions:
        if action == "step":
            for _ in range(value):
                engine.step()
        elif action == "skip":
            engine.handle(Skip("me", number, value))
        elif action == "take":
            engine.handle(Take("me", number, (value,)))
        else:
            number, target = number + 1, target + value
            more = bench.work(order[::-1], target=target, round=number)
            less = Continue("me", number, target, tuple(order[::-1]), 60.0)
            engine.handle(more if action == "work" else less)
    said = {}
    for chunk in [*ALL, *ALL]:  # in lockstep the first verdict may go to a chunk that was under way
        engine.handle(Take("me", number, (chunk,)))
        said |= {event.chunk: event for event in bench.drain(engine)}
    for chunk, update in updates(engine).items():
        progress, twin = reported_alone(bench, small, chunk, target)
        assert update.tobytes() == twin.tobytes()
        assert replace(said[chunk], round=1, seconds=0.0) == replace(progress, seconds=0.0)


def test_version_seed_and_chunk_each_change_training(bench, small):
    usual = alone(bench, small, 1, 3)
    assert not np.array_equal(usual, alone(bench, small, 1, 3, seed=6))
    assert not np.array_equal(usual, alone(bench, small, 1, 3, version=1))
    assert np.array_equal(usual, alone(bench, small, 1, 3))


def test_global_generators_are_irrelevant_and_unchanged(bench, small):
    first = alone(bench, small, 1, 3)
    torch.manual_seed(99)
    before = np.random.get_state()[1].copy()  # noqa: NPY002  the legacy generator is what is looked at
    assert np.array_equal(first, alone(bench, small, 1, 3))
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002  the legacy generator is what is looked at


def test_two_holders_give_equal_sketches_and_other_chunk_differs(bench, small):
    engines = [bench.engine(small) for _ in range(2)]
    for engine, order in zip(engines, ([0, 1], [1, 0]), strict=True):
        engine.handle(bench.work(order))
    first, second = ({event.chunk: event for event in bench.drain(engine)} for engine in engines)
    assert first[0].sketch == second[0].sketch
    assert first[0].sketch != first[1].sketch


# ---- the queue


def test_reassigned_chunks_come_next_after_current_chunk(bench, small):
    engine = bench.engine(small)
    engine.handle(bench.work([0, 1, 2]))
    engine.step()
    engine.handle(Take("me", 1, (2,)))
    engine.handle(Take("me", 1, (0, 4, 3)))
    assert [event.chunk for event in bench.drain(engine)] == [0, 4, 3, 2, 1]


def test_finished_reassigned_chunk_is_reported_at_once(bench, small):
    engine = bench.engine(small)
    engine.handle(bench.work([0, 1]))
    first = next(event for event in iter(engine.step, ...) if event)
    engine.step()
    engine.handle(Take("me", 1, (0,)))
    assert engine.step() == first
    assert [event.chunk for event in bench.drain(engine)] == [1]


def test_skipped_chunk_is_paused_and_resumed(bench, small):
    engine = bench.engine(small)
    engine.handle(bench.work([0, 1]))
    engine.step()
    engine.step()
    engine.handle(Skip("me", 1, 0))
    engine.handle(Skip("me", 1, 1))
    assert engine.idle
    assert engine.kept() == (Kept(0, 0, 2),)
    engine.handle(Take("me", 1, (0,)))
    assert engine.step().chunk == 0  # one step was missing


def test_every_chunk_waits_for_verdict_in_lockstep(bench, small):
    engine = bench.engine(small)
    engine.handle(bench.work([0, 1, 2], lockstep=True))
    assert [event.chunk for event in bench.drain(engine)] == [0]
    assert engine.step() is None
    engine.handle(Skip("me", 1, 2))
    assert [event.chunk for event in bench.drain(engine)] == [1]
    engine.handle(Take("me", 1, (2,)))
    assert [event.chunk for event in bench.drain(engine)] == [2]
    engine.handle(Continue("me", 2, 5, (0,), 60.0))
    assert [(event.chunk, event.reached) for event in bench.drain(engine)] == [(0, 5)]


def test_continued_round_keeps_trajectories_under_new_number(bench, small):
    engine = bench.engine(small)
    engine.handle(bench.work([0, 1], target=2))
    bench.drain(engine)
    engine.handle(Close("me", 1, "skipped", frees=False))
    engine.handle(Continue("me", 2, 5, (1, 0), 60.0))
    said = bench.drain(engine)
    assert [(event.round, event.chunk, event.reached) for event in said] == [(2, 1, 5), (2, 0, 5)]


def test_target_below_progress_restarts_chunk(bench, small):
    engine = bench.engine(small)
    engine.handle(bench.work([0], target=5))
    bench.drain(engine)
    engine.handle(bench.work([0], target=2, round=2))
    [progress] = bench.drain(engine)
    assert progress.reached == 2
    assert np.array_equal(updates(engine, [0])[0], alone(bench, small, 0, 2))


def test_paused_chunk_exactly_at_new_target_is_reported(bench, small):
    engine = bench.engine(small)
    engine.handle(bench.work([0], target=5))
    engine.step()
    engine.step()
    engine.handle(bench.work([0], target=2, round=2))
    assert [event.reached for event in bench.drain(engine)] == [2]
    assert np.array_equal(updates(engine, [0])[0], alone(bench, small, 0, 2))


def test_renamed_chunk_is_restarted(bench, small):
    engine = bench.engine(small)
    engine.handle(bench.work([0]))
    before = (bench.drain(engine), updates(engine, [0])[0])[1]
    engine.handle(bench.work([0], round=2, names=((0, "c3"),)))
    [progress] = bench.drain(engine)
    assert progress.samples == 21
    assert not np.array_equal(before, updates(engine, [0])[0])


def test_close_frees_only_its_round_and_only_on_request(bench, small):
    engine = bench.engine(small)
    engine.handle(bench.work([0, 1]))
    bench.drain(engine)
    kept = engine.kept()
    assert [(each.chunk, each.reached, len(each.sketch)) for each in kept] == [(0, 3, 16), (1, 3, 16)]
    engine.handle(Close("me", 0, "synced", frees=True))
    engine.handle(Close("me", 1, "skipped", frees=False))
    assert engine.kept() == kept
    engine.handle(Close("me", 1, "synced", frees=True))
    assert engine.kept() == ()
    with pytest.raises(BadMessage, match="no work before it"):
        engine.codeword(Mix((0,), ((1.0,),)))
    engine.handle(bench.work([0], round=2))  # the model is still here
    assert len(bench.drain(engine)) == 1


# ---- models


def test_work_on_missing_model_is_refused(bench, small):
    engine = bench.engine(small)
    with pytest.raises(BadMessage, match=r"needed model version 3, saw only \[0\]"):
        engine.handle(bench.work([0], version=3))


def test_new_model_may_arrive_during_work_on_old_model(bench, small):
    engine = bench.engine(small)
    engine.handle(bench.work([0, 1]))
    engine.step()
    engine.load(1, bench.vector(engine.size, seed=1))
    assert list(engine._models) == [0, 1]
    bench.drain(engine)
    assert np.array_equal(updates(engine, [1])[1], alone(bench, small, 1, 3))
    engine.handle(bench.work([0], round=2, version=1))
    assert list(engine._models) == [1]
    assert engine.kept() == ()


def test_replaced_version_frees_work_from_old_version(bench, small):
    engine = bench.engine(small)
    engine.handle(bench.work([0]))
    bench.drain(engine)
    engine.load(0, bench.vector(engine.size))
    assert len(engine.kept()) == 1
    engine.load(0, bench.vector(engine.size, seed=1))
    assert engine.kept() == ()
    assert engine.idle


@pytest.mark.parametrize(
    ("spoil", "seen"),
    [
        (lambda v: v[:-1], "needed float32 of shape"),
        (lambda v: v.astype(np.float64), "saw float64"),
        (lambda v: np.where(np.arange(v.size) == 7, np.float32("nan"), v), "first nan at 7"),
    ],
)
def test_invalid_model_is_refused_and_changes_nothing(bench, small, spoil, seen):
    engine = bench.engine(small)
    with pytest.raises(BadVector, match=seen):
        engine.load(1, spoil(bench.vector(engine.size)))
    assert list(engine._models) == [0]


# ---- commands that cannot be followed


def test_commands_of_other_round_or_before_work_are_refused(bench, small):
    engine = bench.engine(small)
    for command in (Skip("me", 1, 0), Take("me", 1, (0,)), Continue("me", 1, 2, (0,), 60.0)):
        with pytest.raises(BadMessage, match="no work before it"):
            engine.handle(command)
    engine.handle(bench.work([0]))
    for command in (Skip("me", 2, 0), Take("me", 0, (0,))):
        with pytest.raises(BadMessage, match="needed round 1"):
            engine.handle(command)
    with pytest.raises(BadMessage, match=r"chunks \[9\]"):
        engine.handle(Continue("me", 2, 4, (9,), 60.0))
    with pytest.raises(BadMessage, match="target 1, needed at least 3"):
        engine.handle(Continue("me", 2, 1, (0,), 60.0))
    assert [event.chunk for event in bench.drain(engine)] == [0]


def test_reassigning_unknown_chunk_fails_by_name(bench, small):
    engine = bench.engine(small)
    engine.handle(bench.work([0]))
    engine.handle(Take("me", 1, (9,)))
    failed, progress = bench.drain(engine)
    assert failed.chunks == (9,)
    assert "chunk 9 is not among the 5" in failed.reason
    assert progress.chunk == 0


def test_many_unknown_chunks_are_one_short_failure(bench, small):
    engine = bench.engine(small)
    engine.handle(bench.work([0]))
    engine.handle(Take("me", 1, tuple(range(9, 100_009))))
    failed, progress = bench.drain(engine)
    assert failed.chunks == tuple(range(9, 1009))
    assert progress.chunk == 0


def test_chunk_taken_again_and_again_is_reported_once(bench, small):
    engine = bench.engine(small)
    engine.handle(bench.work([0]))
    assert [event.chunk for event in bench.drain(engine)] == [0]
    for _ in range(10):
        engine.handle(Take("me", 1, (0,)))
    assert [event.chunk for event in bench.drain(engine)] == [0]


def test_unfinished_chunk_cannot_be_mixed(bench, small):
    engine = bench.engine(small)
    engine.handle(bench.work([0, 1]))
    engine.step()
    for chunk, step in ((0, 1), (1, 0), (9, 0)):
        with pytest.raises(BadMessage, match=f"chunk {chunk} is at step {step}, needed 3"):
            engine.codeword(Mix((chunk,), ((1.0,),)))
    while not engine.idle:
        engine.step()
    with pytest.raises(NotHere) as refused:
        engine.codeword(Mix((9, 0, 2), ((1.0,),) * 3))
    assert refused.value.chunks == (9, 2), "what is finished can still be had"


# ---- the user's code


def test_unloadable_chunk_fails_and_next_chunk_continues(bench, small):
    def load(name):
        if name == "c1":
            raise FileNotFoundError("no scan\nof that name")
        return small.load(name)

    engine = bench.engine(replace(small, load=load))
    engine.handle(bench.work([1, 0]))
    failed, progress = bench.drain(engine)
    assert failed == Failed(
        0.0, "me", 1, "chunk 1 (c1), step 1: FileNotFoundError: no scan of that name", (1,)
    )
    assert progress.chunk == 0


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (
            lambda loss: loss * float("nan"),
            "chunk 1 (c1), step 2: the loss is nan, needed a number up to 1e+30",
        ),
        (lambda loss: loss / 0, "chunk 1 (c1), step 2: the loss is inf, needed a number up to 1e+30"),
        (
            lambda loss: 0 * loss + 1e31,
            "chunk 1 (c1), step 2: the loss is 9.999999848243207e+30, needed a number up to 1e+30",
        ),
        (lambda loss: 1 // 0, "chunk 1 (c1), step 2: ZeroDivisionError: integer division or modulo by zero"),
        (lambda loss: loss.item(), "chunk 1 (c1), step 2: loss() returned a float"),
        (lambda loss: loss.expand(2), "chunk 1 (c1), step 2: loss() returned shape (2,)"),
        (lambda loss: loss.detach(), "chunk 1 (c1), step 2: loss() returned a tensor without gradient"),
    ],
)
def test_non_finite_loss_fails_chunk_at_once(bench, small, outcome, reason):
    calls = []

    def loss(module, batch):
        calls.append(len(batch[0]))
        return outcome(small.loss(module, batch)) if len(calls) == 5 else small.loss(module, batch)

    engine = bench.engine(replace(small, loss=loss))
    engine.handle(bench.work([0, 1, 2]))
    first, failed, last = bench.drain(engine)
    assert (first.chunk, last.chunk) == (0, 2)
    assert failed.chunks == (1,)
    assert failed.reason.startswith(reason)
    assert np.array_equal(updates(engine, [2])[2], alone(bench, small, 2, 3))


def test_non_finite_update_fails_chunk(bench, small):
    def model():
        return nn.Sequential(nn.Linear(6, 2), nn.BatchNorm1d(2, affine=False))

    def loss(module, batch):
        module[1].running_mean.fill_(float("inf"))  # in no loss: batch statistics are used in training
        return small.loss(module, batch)

    engine = bench.engine(replace(small, model=model, loss=loss))
    engine.handle(bench.work([0]))
    [failed] = bench.drain(engine)
    assert "chunk 0 (c0), step 3: the update is" in failed.reason


@pytest.mark.parametrize(
    ("loaded", "seen"),
    [
        (7, "load() returned a int"),
        ((torch.zeros(9, 6), torch.zeros(8)), "lengths [9, 8]"),
        ((torch.zeros(9, 6), "labels"), "(Tensor, str)"),
        ((torch.zeros(3, 6), torch.zeros(3)), "load() gave 3 samples, chunks says 9"),
    ],
)
def test_data_of_unexpected_kind_fails_by_name(bench, small, loaded, seen):
    engine = bench.engine(replace(small, load=lambda name: loaded))
    engine.handle(bench.work([0]))
    [failed] = bench.drain(engine)
    assert seen in failed.reason


def test_chunk_missing_on_machine_fails_by_name(bench, small):
    engine = bench.engine(replace(small, chunks={"c0": 9}))
    assert engine.holds() == (Held("c0", 9),)
    engine.handle(bench.work([1, 0]))
    failed, progress = bench.drain(engine)
    assert "chunk 'c1' is not among the 1 that can be loaded here" in failed.reason
    assert progress.chunk == 0


def test_long_user_error_message_is_cut(bench, small):
    def load(name):
        raise ValueError("x" * 9999)

    engine = bench.engine(replace(small, load=load))
    engine.handle(bench.work([0]))
    [failed] = bench.drain(engine)
    assert len(failed.reason) == 400


def test_task_with_invalid_model_or_optimizer_is_refused(bench, small):
    def raises():
        raise OSError("weights.pt is missing")

    for task, seen in (
        (replace(small, model=raises), r"model\(\) raised OSError: weights.pt is missing"),
        (replace(small, model=list), r"model\(\) returned a list"),
        (replace(small, optimizer=lambda parameters, rate: None), r"optimizer\(\) returned a NoneType"),
        (replace(small, optimizer=lambda parameters, rate: 1 / 0), r"optimizer\(\) raised ZeroDivisionError"),
    ):
        with pytest.raises(BadTask, match=seen):
            bench.engine(task)


# ---- mixing, memory and time


@pytest.mark.parametrize("memory", ["all fits", "none fits"])
@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_codeword_mixes_blocks_of_updates(bench, small, blocks, memory, monkeypatch):
    if memory == "none fits":
        monkeypatch.setattr("fedgc.training.make.MEGABYTE", 1)
    engine = bench.engine(small, RunConfig(batch_size=10, memory_mb=1, work="coded"))
    engine.handle(bench.work([0, 2, 4]))
    bench.drain(engine)
    assert len(list(bench.spill_dir.rglob("*.npy"))) == (3 if memory == "none fits" else 0)
    matrix = np.random.default_rng(0).normal(size=(3, blocks))
    mix = Mix((4, 0, 2), tuple(map(tuple, matrix.tolist())))
    length = -(-engine.size // blocks)
    expected = np.zeros(length)
    for row, chunk in zip(matrix, mix.chunks, strict=True):
        padded = np.zeros(length * blocks)
        padded[: engine.size] = alone(bench, small, chunk, 3)
        expected += row @ padded.reshape(blocks, length)
    codeword = engine.codeword(mix)
    assert codeword.dtype == np.float32
    assert np.allclose(codeword, expected, atol=1e-4)


def test_trajectories_on_disk_are_continued_exactly(bench, small, monkeypatch):
    monkeypatch.setattr("fedgc.training.make.MEGABYTE", 1)
    engine = bench.engine(small, RunConfig(batch_size=10, memory_mb=1, work="coded"))
    engine.handle(bench.work(ALL, target=2))
    bench.drain(engine)
    engine.handle(Continue("me", 2, 4, tuple(ALL), 60.0))
    bench.drain(engine)
    for chunk, update in updates(engine).items():
        assert update.tobytes() == alone(bench, small, chunk, 4).tobytes()


def test_full_disk_costs_chunk_but_not_engine(bench, small, monkeypatch):
    monkeypatch.setattr("fedgc.training.make.MEGABYTE", 100)  # room for none
    engine = bench.engine(small, RunConfig(batch_size=10, memory_mb=1, work="coded"))

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(np, "save", full)
    engine.handle(bench.work([0, 1]))
    said = bench.drain(engine)
    assert [(type(event), event.chunks) for event in said] == [(Failed, (0,)), (Failed, (1,))]
    assert all("no space left" in event.reason for event in said)
    assert engine.kept() == ()
    monkeypatch.undo()
    engine.handle(Take("me", 1, (1,)))
    [progress] = bench.drain(engine)
    assert progress.chunk == 1


def test_time_is_counted_in_steps_of_its_chunk(bench, small, clock):
    def load(name):
        clock.now += 1000.0
        return small.load(name)

    engine = bench.engine(replace(small, load=load), clock=clock)
    engine.handle(bench.work([0], target=4))
    assert [event.seconds for event in bench.drain(engine)] == [4.0]  # the clock moves by 1 a reading


def test_step_faster_than_pace_rests_for_difference(bench, small, clock):
    rested, rest = [], clock.rest
    clock.rest = lambda seconds: (rested.append(seconds), rest(seconds))
    engine = bench.engine(small, clock=clock, pace_s=4.0)
    engine.handle(bench.work([0], target=2))
    [progress] = bench.drain(engine)
    assert rested == [3.0, 3.0]
    assert progress.seconds == 2 * (4.0 + 1.0)  # the clock moves by 1 at each reading: after work, after rest


def test_rest_cut_short_by_command_is_made_up_before_next_step(bench, small, clock):
    rested = []

    def cut_short(seconds: float) -> None:
        rested.append(seconds)
        clock.now += 0.5

    clock.rest = cut_short
    engine = bench.engine(small, clock=clock, pace_s=8.0)
    engine.handle(bench.work([0], target=2))
    [progress] = bench.drain(engine)
    assert rested == [7.0, 5.5, 4.0, 2.5, 1.0, 7.0], "each rest takes half a second, and its readings one"
    assert progress.seconds >= 8.0


def test_step_slower_than_pace_does_not_rest(bench, small, clock):
    rested = []
    clock.rest = rested.append
    engine = bench.engine(small, clock=clock, pace_s=0.5)
    engine.handle(bench.work([0], target=2))
    bench.drain(engine)
    assert rested == []


@pytest.mark.parametrize("pace_s", [-0.5, float("inf"), float("nan")])
def test_invalid_pace_is_refused(bench, small, pace_s):
    with pytest.raises(BadSetting, match="setting pace-s"):
        bench.engine(small, pace_s=pace_s)


@pytest.mark.parametrize("kind", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_bf16_trains_close_to_float32(bench, small, kind):
    found = []
    for precision in ("float32", "bf16"):
        engine = bench.engine(small, RunConfig(batch_size=10, precision=precision, device=kind, work="coded"))
        engine.handle(bench.work([4]))
        bench.drain(engine)
        found.append(updates(engine, [4])[4])
    distance = np.linalg.norm(found[0] - found[1]) / np.linalg.norm(found[0])
    assert 0 < distance < 0.2


def test_dataset_and_its_tensors_give_same_update(bench, small):
    class Rows(torch.utils.data.Dataset):
        def __init__(self, name):
            self.inputs, self.labels = small.load(name)

        def __len__(self):
            return len(self.inputs)

        def __getitem__(self, row):
            return {"inputs": self.inputs[row], "labels": self.labels[row]}

    def loss(module, batch):
        return small.loss(module, (batch["inputs"], batch["labels"]))

    as_rows = replace(small, load=Rows, loss=loss)
    as_tensors = replace(small, load=lambda name: torch.utils.data.TensorDataset(*small.load(name)))
    usual = alone(bench, small, 3, 3)
    assert np.array_equal(usual, alone(bench, as_rows, 3, 3))
    assert np.array_equal(usual, alone(bench, as_tensors, 3, 3))


def test_random_augmentation_is_same_for_every_holder(bench, small):
    class Noisy(torch.utils.data.Dataset):
        def __init__(self, name):
            self.inputs, self.labels = small.load(name)

        def __len__(self):
            return len(self.inputs)

        def __getitem__(self, row):
            legacy = np.random.rand()  # noqa: NPY002  the legacy generator is what is looked at
            return self.inputs[row] + torch.randn(6) + legacy, self.labels[row]

    noisy = replace(small, load=Noisy)
    assert np.array_equal(alone(bench, noisy, 1, 3), alone(bench, noisy, 1, 3))
    assert not np.array_equal(alone(bench, noisy, 1, 3), alone(bench, small, 1, 3))


def test_frozen_weights_are_same_on_every_client(bench, small):
    def model():
        module = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))
        module[0].requires_grad_(requires_grad=False)
        return module

    frozen = replace(small, model=model, optimizer=None)
    first = alone(bench, frozen, 0, 3)
    torch.manual_seed(1)
    assert np.array_equal(first, alone(bench, frozen, 0, 3))


@pytest.mark.gpu
def test_cuda_client_agrees_with_cpu(bench, small):
    found = []
    for kind in ("cpu", "cuda"):
        engine = bench.engine(small, RunConfig(batch_size=10, device=kind, work="coded"))
        engine.handle(bench.work(ALL))
        events = bench.drain(engine)
        assert [event.chunk for event in events] == list(ALL)
        found.append((events, updates(engine)))
    (cpu_events, cpu), (cuda_events, cuda) = found
    for chunk in ALL:
        distance = np.linalg.norm(cpu[chunk] - cuda[chunk])
        assert distance < 1e-4 * np.linalg.norm(cpu[chunk])
        assert np.allclose(cpu_events[chunk].sketch, cuda_events[chunk].sketch, atol=1e-4)


@pytest.mark.gpu
def test_cuda_client_is_deterministic(bench, small):
    first, again = [], []
    for found, order in ((first, list(ALL)), (again, list(ALL)[::-1])):
        engine = bench.engine(small, RunConfig(batch_size=10, device="cuda", work="coded"))
        engine.handle(bench.work(order))
        bench.drain(engine)
        found.append(updates(engine))
    for chunk in ALL:
        assert first[0][chunk].tobytes() == again[0][chunk].tobytes()


def test_averaging_learns_digits(bench):
    from fedgc.training import CommonModel, ServerOptimizer
    from fedgc.training.tasks import named

    config = RunConfig(threads=1, work="coded")
    task = named("digits", config)
    common = CommonModel(task, config)
    server = ServerOptimizer(config, common.parameters)
    engine = bench.engine(task, config, vector=common.first())
    held = engine.holds()
    names = tuple((i, each.name) for i, each in enumerate(held))
    every = Mix(tuple(range(len(held))), ((1.0,),) * len(held))
    vector = common.first()
    for number in range(15):
        engine.load(number, vector)
        engine.handle(bench.work(range(len(held)), target=4, round=number, version=number, names=names))
        assert len(bench.drain(engine)) == len(held)
        mean = engine.codeword(every) / np.float32(sum(each.samples for each in held))
        vector = server.apply(vector, mean)
        engine.handle(Close("me", number, "synced", frees=True))
    assert common.evaluate(vector)["accuracy"] > 0.95
