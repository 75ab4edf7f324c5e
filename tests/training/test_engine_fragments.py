"""Test local work with fragments: one travels while training goes on, and merges when it comes back."""

from dataclasses import replace

import numpy as np
import pytest

from fedgc.codecs import make_codec
from fedgc.codecs.model_change import Changed
from fedgc.config import RunConfig
from fedgc.fragments import fragment_of
from fedgc.messages import Close, Report, Validate
from fedgc.training.trainer import LocalStep, Trainer
from tests.training.test_local_engine import CHUNKS, PLAIN, local, reveal, steps

PARTS = 2
CONFIG = replace(PLAIN, fragments=PARTS, fragment_mixing=0.25, link="session", evaluate_every=0)
NAMES = tuple(f"c{chunk}" for chunk in CHUNKS)


class Alone:
    """Slow reference: a trainer that does numbered steps."""

    def __init__(self, task, config: RunConfig, start: np.ndarray) -> None:
        self.trainer = Trainer(task, config)
        self.trainer.load(NAMES)
        self.trainer.begin(start)

    def steps(self, first: int, last: int) -> np.ndarray:
        for number in range(first, last):
            self.trainer.step(NAMES, LocalStep((5, "me"), number))
        return self.trainer.flat.read()

    def mixed(self, model: np.ndarray, part: slice, own: float) -> None:
        local = self.trainer.flat.read()
        local[part] = np.float32(own) * local[part] + np.float32(1 - own) * model[part]
        self.trainer.flat.write(local)


def begun(bench, task, config: RunConfig, target: int = 3):
    """Return an engine whose fragment was asked for at the target, and a reference at the same step."""
    engine = bench.engine(task, config)
    engine.handle(local(bench, target=target, most_steps=50))
    steps(engine, target)
    return engine, Alone(task, config, bench.vector(engine.size))


def next_model(bench, engine, version: int = 1) -> tuple[np.ndarray, slice]:
    part = fragment_of(version - 1, PARTS, engine.size)
    model = bench.vector(engine.size)
    model[part] = bench.vector(engine.size, seed=9)[part]
    return model, part


def test_fragment_is_sent_while_training_goes_on(bench, small):
    engine, alone = begun(bench, small, CONFIG)
    answer = engine.answer(reveal())
    steps(engine, 4)
    part = fragment_of(0, PARTS, engine.size)
    expected = (bench.vector(engine.size) - alone.steps(0, 3))[part]
    np.testing.assert_array_equal(answer.vector[:], expected)
    assert answer.report.steps == 3
    assert engine.kept()[0].reached == 7


def test_new_part_is_mixed_into_model_under_training(bench, small):
    engine, alone = begun(bench, small, CONFIG)
    engine.answer(reveal())
    steps(engine, 2)
    model, part = next_model(bench, engine)
    engine.handle(Close("me", 1, "synced", frees=True))
    engine.load(1, model, Changed(0, (part,)))
    engine.handle(local(bench, target=3, round=2, version=1, first_step=3, most_steps=50))
    assert engine.kept()[0].reached == 2, "steps since the fragment was sent count for the next round"
    (report,) = [each for each in (engine.step() for _ in range(1)) if isinstance(each, Report)]
    assert (report.round, report.steps) == (2, 3)
    answer = engine.answer(reveal(2))
    alone.steps(0, 5)
    alone.mixed(model, part, 0.25)
    other = fragment_of(1, PARTS, engine.size)
    np.testing.assert_allclose(answer.vector[:], (model - alone.steps(5, 6))[other], atol=1e-6)


def test_part_replaces_that_of_client_that_waited(bench, small):
    config = replace(CONFIG, lockstep="on")
    engine = bench.engine(small, config)
    engine.handle(local(bench, target=3))
    bench.drain(engine)
    engine.answer(reveal())
    assert engine.idle
    model, part = next_model(bench, engine)
    engine.load(1, model, Changed(0, (part,)))
    engine.handle(local(bench, target=3, round=2, version=1, first_step=3))
    bench.drain(engine)
    alone = Alone(small, config, bench.vector(engine.size))
    alone.steps(0, 3)
    alone.mixed(model, part, 0.0)
    expected = (model - alone.steps(3, 6))[fragment_of(1, PARTS, engine.size)]
    np.testing.assert_allclose(engine.answer(reveal(2)).vector[:], expected, atol=1e-6)


@pytest.mark.parametrize("changed", [None, Changed(7, (slice(0, 4),))])
def test_client_without_model_before_begins_anew(bench, small, changed):
    engine, _ = begun(bench, small, CONFIG)
    engine.answer(reveal())
    steps(engine, 2)
    model, _ = next_model(bench, engine)
    engine.load(1, model, changed)
    engine.handle(local(bench, target=3, round=2, version=1, first_step=3))
    bench.drain(engine)
    expected = model - Alone(small, CONFIG, model).steps(3, 6)
    answer = engine.answer(reveal(2))
    np.testing.assert_allclose(answer.vector[:], expected[fragment_of(1, PARTS, engine.size)], atol=1e-6)


def test_each_fragment_keeps_its_own_residual(bench, small):
    """Over two turns, what a fragment's first update lost is in its second one."""
    engine = bench.engine(small, replace(CONFIG, lockstep="on"))
    start = bench.vector(engine.size)
    part, sent, exact = fragment_of(0, PARTS, engine.size), [], []
    for version in range(3):
        changed = fragment_of(version - 1, PARTS, engine.size)
        engine.load(version, start, Changed(version - 1, (changed,)) if version else None)
        work = local(bench, target=2, round=version + 1, version=version, first_step=2 * version)
        engine.handle(work)
        bench.drain(engine)
        if version % PARTS == 0:
            now = engine._loop.vector()
            exact.append((start[part] - now[part]).copy())
        answer = engine.answer(reveal(version + 1, wire="int8"))
        if version % PARTS == 0:
            sent.append(make_codec("int8").decode(answer.encoded, part.stop - part.start))
        engine.handle(Close("me", version + 1, "synced", frees=False))
    lost = exact[0] - sent[0]
    assert np.abs(lost).max() > 0
    again = sent[1] - exact[1] - lost
    assert np.abs(again).max() <= np.abs(exact[1] + lost).max() / 127 * 1.01


def test_scoring_leaves_model_under_training_as_it_is(bench, small):
    scored = replace(
        small, validate=lambda module: {"mean": float(sum(p.sum() for p in module.parameters()))}
    )
    found = []
    for interrupted in (False, True):
        engine, _ = begun(bench, scored, CONFIG)
        engine.answer(reveal())
        if interrupted:
            engine.handle(Validate("me", 1, 0))
        while engine.kept()[0].reached < 5:
            engine.step()
        found.append(engine._loop.vector()[:].copy())
    np.testing.assert_array_equal(*found)
