"""Test the frontier of codecs: its scene trains, bytes are those of the codec, the rival is as published."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.large_codecs import DILOCO, INT4, OURS, PLAIN, PUBLISHED, Arm, figures_of, train
from benchmarks.large_training import Clients, Shape, first_model
from benchmarks.sparse_loco import SparseLoCo
from fedgc.codecs import make_codec

SMALL = Shape(width=8, layers=1, batch=1)


def test_loss_falls_and_bytes_are_exact():
    size = first_model(SMALL, 0).size
    start = Clients(SMALL, 0, 4).loss(first_model(SMALL, 0))
    trained = train(Arm("few", "top-k share=0.5", 2), 0, 4, SMALL)
    assert trained.loss < start
    assert trained.up_bytes == 2 * make_codec("top-k share=0.5").largest(size)


def test_float32_arm_averages_models():
    clients, model = Clients(SMALL, 3, 2), first_model(SMALL, 3)
    mean = np.mean(clients.train(model, 2), axis=0)
    expected = clients.loss(model - mean.astype(np.float32))
    assert train(Arm("plain", "float32", 2), 3, 2, SMALL).loss == pytest.approx(expected, rel=1e-5)


def test_published_codec_keeps_largest_of_each_chunk():
    vector = np.random.default_rng(0).normal(size=10_000).astype(np.float32)
    codec = SparseLoCo(64)
    data = codec.encode(vector, np.random.default_rng(0))
    assert data.nbytes == codec.largest(10_000) == 16 + 3 * 64 * 14 // 8
    decoded = codec.decode(data, 10_000)
    assert np.count_nonzero(decoded) == 3 * 64
    assert len(np.unique(decoded)) <= 5
    kept = np.flatnonzero(decoded[:4096])
    assert set(kept) == set(np.argsort(-np.abs(vector[:4096]))[:64])


def test_figures_compare_mean_losses_and_bytes():
    means = {PLAIN: (2.0, 1000), OURS: (2.1, 20), INT4: (2.5, 21), PUBLISHED: (3.0, 22), DILOCO: (2.1, 1000)}
    figures = figures_of(means)
    assert figures["topk_bytes_ratio"] == pytest.approx(0.02)
    assert figures["topk_loss_gap"] == pytest.approx(0.05)
    assert figures["topk_over_int4"] == pytest.approx(2.1 / 2.5)
    assert figures["topk_over_published"] == pytest.approx(0.7)
    assert figures["topk_over_diloco"] == pytest.approx(1.0)


def test_every_arm_trains():
    for arm in (PLAIN, OURS, INT4, PUBLISHED, DILOCO):
        once = replace(arm, local_steps=1)
        assert np.isfinite(train(once, 0, 1, SMALL).loss)
