"""Test the server's step with fragments and with changes in 8 bits."""

import numpy as np
import pytest

from fedgc.codecs.model_change import apply_change
from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed
from fedgc.fragments import fragment_of
from fedgc.training import ServerOptimizer
from fedgc.training.next_model import NextModel

SIZE, PARAMETERS = 5000, 4000
FRAGMENTS = {"fragments": 3, "link": "session"}


def means(count: int, fragments: int) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    sizes = [fragment_of(version, fragments, SIZE) for version in range(count)]
    return [rng.normal(size=each.stop - each.start).astype(np.float32) for each in sizes]


@pytest.mark.parametrize("rule", ["sgd", "nesterov", "adam"])
def test_fragments_step_as_models_of_their_own(rule):
    config = RunConfig(server_optimizer=rule, server_learning_rate=0.5, **FRAGMENTS)
    server, model = NextModel(config, PARAMETERS, SIZE), np.ones(SIZE, np.float32)
    parts = [fragment_of(version, 3, SIZE) for version in range(3)]
    alone = [ServerOptimizer(config, max(0, min(PARAMETERS, p.stop) - p.start)) for p in parts]
    expected = model.copy()
    for version, mean in enumerate(means(7, 3)):
        part, one = parts[version % 3], alone[version % 3]
        expected[part] = one.apply(expected[part].copy(), mean.copy())
        model, change = server.apply(model, mean, version)
        assert (change.part, change.wire) == (part, "float32")
        np.testing.assert_array_equal(model, expected)


@pytest.mark.parametrize("fragments", [1, 3])
def test_clients_and_server_have_same_bits_with_8_bit_changes(fragments):
    config = RunConfig(download_codec="int8", fragments=fragments, link="session")
    server, model = NextModel(config, PARAMETERS, SIZE), np.ones(SIZE, np.float32)
    client, exact = model.copy(), model.astype(np.float64)
    for version, mean in enumerate(means(30, fragments)):
        part = fragment_of(version, fragments, SIZE)
        exact[part] -= mean
        largest = float(np.abs(mean).max())
        model, change = server.apply(model, mean, version)
        apply_change(client, change)
        np.testing.assert_array_equal(client, model)
        buffers = max(0, part.stop - max(part.start, PARAMETERS))
        assert change.data.nbytes < 0.26 * 4 * (part.stop - part.start - buffers) + 4 * buffers
        # without error feedback the error would grow from step to step
        assert np.abs(model[part] - exact[part]).max() < 1.1 * largest / 127


@pytest.mark.parametrize("fragments", [1, 3])
def test_buffers_are_downloaded_exactly_with_8_bit_changes(fragments):
    config = RunConfig(download_codec="int8", fragments=fragments, link="session")
    server, model = NextModel(config, PARAMETERS, SIZE), np.ones(SIZE, np.float32)
    exact = model.copy()
    for version, mean in enumerate(means(6, fragments)):
        part = fragment_of(version, fragments, SIZE)
        exact[part] -= mean
        model, _ = server.apply(model, mean, version)
        exact[:PARAMETERS] = model[:PARAMETERS]
        np.testing.assert_allclose(model, exact, rtol=0, atol=1e-6)


@pytest.mark.parametrize("download_codec", ["float32", "int8"])
@pytest.mark.parametrize("fragments", [1, 3])
@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_step_makes_no_variance_negative(download_codec, fragments, rule):
    """Some of these buffers are variances, others may have any sign."""
    options = {"server_optimizer": rule, "fragments": fragments, "link": "session"}
    config, variances = RunConfig(download_codec=download_codec, **options), [slice(4500, SIZE)]
    server, model = NextModel(config, PARAMETERS, SIZE, variances), np.ones(SIZE, np.float32)
    for version, mean in enumerate(means(12, fragments)):
        part = fragment_of(version, fragments, SIZE)
        before = model
        model, _ = server.apply(model, mean.copy(), version)
        assert (model[4500:] >= 0).all()
        kept = before[part] - mean >= 0
        kept[: max(0, min(kept.size, PARAMETERS - part.start))] = False
        np.testing.assert_allclose(model[part][kept], (before[part] - mean)[kept], rtol=0, atol=1e-6)
    assert (model[PARAMETERS:4500] < 0).any()


def test_restored_server_makes_same_changes():
    config = RunConfig(download_codec="int8", server_optimizer="nesterov", server_learning_rate=0.7)
    server, model = NextModel(config, PARAMETERS, SIZE), np.ones(SIZE, np.float32)
    for version, mean in enumerate(means(4, 1)):
        model, _ = server.apply(model, mean, version)
    other = NextModel(config, PARAMETERS, SIZE)
    other.restore(server.state())
    (mean,) = means(1, 1)
    one, change = server.apply(model, mean.copy(), 4)
    two, again = other.apply(model, mean.copy(), 4)
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(change.data, again.data)


def test_residual_of_other_form_is_refused():
    server = NextModel(RunConfig(download_codec="int8"), PARAMETERS, SIZE)
    server._optimizer.residual = np.zeros((2, 2), np.float32)
    with pytest.raises(EdgeFailed, match="saw a residual of another form, needed one vector of float32"):
        NextModel(RunConfig(download_codec="int8"), PARAMETERS, SIZE).restore(server.state())
