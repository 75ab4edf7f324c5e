"""Test the streams of the gate benchmark: what a client sees when, and what is scored then."""

import numpy as np
import pytest
import torch

from benchmarks.arm_fleet import ArmTrainer, Extras
from benchmarks.scene import CLIENTS, Scene, figure_at, read, stream_for, task_of
from benchmarks.streams import STREAMS, WINDOW
from fedgc.config import RunConfig
from fedgc.messages import Work

STEPS = 400


@pytest.mark.parametrize("column", STREAMS)
def test_stream_is_same_for_same_seed_and_covers_run(column):
    scene = Scene(column, steps=STEPS)
    first, again, other = (stream_for(scene, seed) for seed in (1, 1, 2))
    assert first is not None
    assert all(np.array_equal(a, b) for a, b in zip(first.rows, again.rows, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first.rows, other.rows, strict=True))
    for client in range(CLIENTS):
        for step in (0, STEPS // 2, STEPS - 1):
            window = first.window(client, step)
            assert window.step <= step
            assert 0 <= window.first < window.last <= len(first.rows[client])


@pytest.mark.parametrize(("column", "periods"), [("shift", 2), ("phases", 4)])
def test_clients_see_classes_that_are_scored_in_each_period(column, periods):
    scene = Scene(column, steps=STEPS)
    stream, table = stream_for(scene, 3), read(None).images
    assert len(stream.begins) == len(stream.tests) == periods
    for number, begin in enumerate(stream.begins):
        seen = set()
        for client in range(CLIENTS):
            window = stream.window(client, begin)
            seen |= set(table.labels[stream.rows[client][window.first : window.last]].tolist())
        assert seen == set(table.test_labels[stream.tests[number]].tolist())
        assert figure_at(stream, begin) == f"accuracy of period {number}"


def test_windows_of_bursts_hold_few_samples_and_change():
    stream = stream_for(Scene("bursts", steps=STEPS), 0)
    for windows in stream.windows:
        assert {window.last - window.first for window in windows} == {WINDOW}
        assert len(windows) > 3


def test_stack_trains_on_window_of_step(tmp_path):
    scene = Scene("shift", steps=STEPS)
    stream, task, config = stream_for(scene, 0), task_of(scene, 0), RunConfig(work="local", seed=0)
    trainer = ArmTrainer(task, config, tmp_path, Extras(stream))
    name = list(task.sizes())[2]
    work = Work("client 2", 1, 0, 8, (2,), ((2, name),), 0, 1.0, kind="local")
    trainer._load(work)
    (_, after) = stream.begins
    for step in (0, after):
        window = stream.window(2, step)
        _, (rows,) = trainer.batches_of(work, range(step, step + 1))
        assert rows.min() >= window.first
        assert rows.max() < window.last


def test_task_of_stream_scores_every_period():
    scene = Scene("phases", steps=STEPS)
    task = task_of(scene, 0)
    with torch.no_grad():
        figures = task.evaluate(task.model())
    assert {f"accuracy of period {number}" for number in range(4)} < set(figures)
