"""Test private tensors of a task: trained, kept from round to round and over processes, never exchanged."""

from dataclasses import replace

import numpy as np
import pytest

from fedgc.config import RunConfig
from fedgc.errors import BadTask
from fedgc.messages import Close, Reveal
from fedgc.training.cache_files import CacheFiles
from tests.training.conftest import SIZES

PLAIN = RunConfig(work="local", batch_size=10, shared_momentum="off", gate="every")
CHUNKS = (0, 1, 2)
HEAD = ("4.weight", "4.bias")


@pytest.fixture
def personal(small):
    return replace(small, private=["4.*"])


def local(bench, *, round=1, version=0, target=3):
    names = tuple((chunk, f"c{chunk}") for chunk in CHUNKS)
    return replace(bench.work(CHUNKS, target=target, round=round, version=version, names=names), kind="local")


def head_of(engine) -> dict[str, np.ndarray]:
    return {name: each.numpy() for name, each in engine._loop._trainer.flat.read_private().items()}


def trained(bench, engine, *, round=1, version=0):
    engine.handle(local(bench, round=round, version=version))
    bench.drain(engine)
    return engine.answer(Reveal("me", round, 0, "local", None))


def test_private_tensors_are_not_in_layout(bench, personal):
    names = {each.name for each in bench.engine(personal, PLAIN).layout.tensors}
    assert names.isdisjoint(HEAD)
    assert "0.weight" in names


def test_private_tensors_continue_from_round_to_round(bench, personal):
    engine = bench.engine(personal, PLAIN)
    first = head_of(engine)
    answer = trained(bench, engine)
    after = head_of(engine)
    assert answer.vector.size == engine.size
    assert any((first[name] != after[name]).any() for name in HEAD)
    engine.handle(Close("me", 1, "synced", frees=True))
    engine.load(1, bench.vector(engine.size, seed=3))
    engine.handle(local(bench, round=2, version=1))
    engine.step()
    now = head_of(engine)
    largest = max(np.abs(now[name] - after[name]).max() for name in HEAD)
    assert 0 < largest < max(np.abs(now[name] - first[name]).max() for name in HEAD)


def test_private_tensors_outlive_process(bench, personal, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    engine = bench.engine(personal, PLAIN, files=CacheFiles(folder))
    trained(bench, engine)
    kept = head_of(engine)
    again = bench.engine(personal, PLAIN, files=CacheFiles(folder))
    for name in HEAD:
        np.testing.assert_array_equal(head_of(again)[name], kept[name])


def test_coded_work_refuses_private_tensors(bench, personal):
    with pytest.raises(BadTask, match="needed work = local"):
        bench.engine(personal, RunConfig(work="coded", batch_size=10))


def test_pattern_without_match_is_refused(bench, small):
    with pytest.raises(BadTask, match=r"saw 'tail.\*', which matches no tensor of the model"):
        bench.engine(replace(small, private=["tail.*"]), PLAIN)


def test_weight_is_samples_of_client(bench, personal):
    assert trained(bench, bench.engine(personal, PLAIN)).weight == sum(SIZES[f"c{n}"] for n in CHUNKS)
