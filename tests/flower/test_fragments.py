"""Test fragments and downloads in few bits, over real sessions, against plain recomputations."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from fedgc.fragments import fragment_of
from fedgc.store.checkpoint import Checkpoint
from fedgc.training.trainer import LocalStep, Trainer
from tests.flower.test_driver import counted, run

LOCAL = {
    "work": "local", "min_clients": 3, "local_steps": 2, "chunks": 6, "replicas": 1, "evaluate_every": 0,
    "quorum": 1.0, "aggregator": "weighted-mean", "shared_momentum": "off", "link": "session",
    "gate": "every",
}  # fmt: skip
PARTS = 3
WHOLE_BYTES = 30_000  # fewer than those of the model


def trained_alone(driver, clients: list[str]) -> np.ndarray:
    """Slow reference: each client trains one model through all rounds, and one part of it is averaged."""
    config, task = driver._job.config, driver._job.model.task
    common, names = driver.common.first(), list(task.sizes())
    trainers = []
    for w in range(len(clients)):
        chunks = tuple(names[len(names) * w // len(clients) : len(names) * (w + 1) // len(clients)])
        trainer = Trainer(task, config)
        samples = trainer.load(chunks)
        trainer.begin(common)
        trainers.append((trainer, chunks, samples))
    total = sum(samples for _, _, samples in trainers)
    for version in range(config.rounds):
        part = fragment_of(version, PARTS, common.size)
        mean = np.zeros(part.stop - part.start)
        for client, (trainer, chunks, samples) in zip(clients, trainers, strict=True):
            for step in range(config.round_steps):
                number = version * config.round_steps + step
                trainer.step(chunks, LocalStep((config.seed, client), number))
            mean += samples / total * (common - trainer.flat.read())[part]
        common[part] -= mean.astype(np.float32)
        for trainer, _, _ in trainers:
            local = trainer.flat.read()
            local[part] = common[part]
            trainer.flat.write(local)
    return common


def test_fragments_equal_plain_recomputation(tmp_path: Path) -> None:
    driver, sink, _ = run(tmp_path, **LOCAL, rounds=5, fragments=PARTS, lockstep="on")
    alone = trained_alone(driver, sorted(counted(sink.rows[0])))
    np.testing.assert_allclose(driver.model, alone, atol=2e-6)
    assert [row.outcome for row in sink.rows] == ["synced"] * 5
    for row in sink.rows:
        assert all(PARTS * each.up_bytes < 1.05 * 4 * alone.size for each in row.clients)
        if row.round > 1:
            assert all(PARTS * each.down_bytes < 1.05 * 4 * alone.size for each in row.clients)


def changed(saved: list[Checkpoint]) -> list[set[int]]:
    """Return which parts differ from each checkpoint to the next."""
    size = saved[0].model.size
    return [
        {p for p in range(PARTS) if (one.model != other.model)[fragment_of(p, PARTS, size)].any()}
        for one, other in pairwise(saved)
    ]


@pytest.mark.parametrize("codec", [pytest.param("float32", marks=pytest.mark.slow), "int8"])
def test_resumed_run_goes_on_with_next_fragment(tmp_path: Path, codec: str) -> None:
    settings = {**LOCAL, "fragments": PARTS, "download_codec": codec}
    _, _, before = run(tmp_path / "first", **settings, rounds=2)
    again = {**settings, "resume": before[-1], "keys": tmp_path / "first"}
    _, sink, after = run(tmp_path / "second", **again, rounds=5)
    assert changed([*before, *after]) == [{1}, {2}, {0}, {1}]
    first, *others = sink.rows
    assert first.round == 3
    assert all(each.down_bytes > WHOLE_BYTES for each in first.clients), "nobody has the model any more"
    assert all(each.down_bytes < WHOLE_BYTES / 2 for row in others for each in row.clients)


def test_late_client_gets_whole_model_and_counts(tmp_path: Path) -> None:
    settings = {**LOCAL, "fragments": PARTS, "download_codec": "int8", "local_steps": 8}
    _, sink, _ = run(tmp_path, **settings, rounds=6, late_after=2)
    early = counted(sink.rows[0])
    (late,) = {each.client for row in sink.rows for each in row.clients} - early
    whole = [each.client for row in sink.rows[1:] for each in row.clients if each.down_bytes > WHOLE_BYTES]
    assert whole == [late]
    assert late in counted(sink.rows[-1])
    assert all(each.failure == "" and not each.refused for row in sink.rows for each in row.clients)


def test_downloads_in_8_bits_reach_all_clients_alike(tmp_path: Path, monkeypatch) -> None:
    begun: list[np.ndarray] = []
    begin = Trainer.begin

    def noted(trainer: Trainer, start: np.ndarray) -> None:
        begun.append(start)
        begin(trainer, start)

    monkeypatch.setattr(Trainer, "begin", noted)
    _, sink, saved = run(tmp_path, **LOCAL, rounds=4, download_codec="int8")
    for checkpoint in saved[:-1]:  # no client trains from the last one
        assert sum(np.array_equal(checkpoint.model, each) for each in begun) == 3
    assert all(each.down_bytes < WHOLE_BYTES / 2 for row in sink.rows[1:] for each in row.clients)
