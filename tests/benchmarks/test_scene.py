"""Test the scenes of the training benchmarks: how samples are divided, and how stragglers behave."""

import numpy as np
import pytest

from benchmarks.scene import (
    BLOCK,
    CLIENTS,
    STRAGGLERS,
    Scene,
    has,
    homes,
    read,
    scenario_of,
    shared_samples,
    task_of,
)
from fedgc.errors import EdgeFailed

WRITERS = 20


@pytest.fixture
def packets(tmp_path):
    """A file as FEMNIST's: 400 gray images of 6 x 6, 20 writers."""
    rng = np.random.default_rng(0)
    path = tmp_path / "packets.npz"
    np.savez(
        path,
        x_train=rng.integers(0, 256, (400, 36)).astype(np.uint8),
        y_train=rng.integers(0, 16, 400).astype(np.uint8),
        writer=rng.integers(0, WRITERS, 400).astype(np.int16),
        x_test=rng.integers(0, 256, (40, 36)).astype(np.uint8),
        y_test=rng.integers(0, 16, 40).astype(np.uint8),
    )
    return path


@pytest.mark.parametrize("column", ["iid", "writers", "skew"])
def test_every_sample_belongs_to_one_client(column, packets):
    dealt = homes(column, read(packets), np.random.default_rng(1))
    assert len(dealt) == CLIENTS
    assert np.sort(np.concatenate(dealt)).tolist() == list(range(400))


def test_writer_is_split_between_neighbors_at_most(packets):
    table = read(packets)
    dealt = homes("writers", table, np.random.default_rng(1))
    owners = [sum(writer in table.writer[mine] for mine in dealt) for writer in range(WRITERS)]
    assert sum(owners) <= WRITERS + CLIENTS - 1


def test_skewed_clients_have_few_labels(packets):
    table = read(packets)
    labels = [len(set(table.labels[mine])) for mine in homes("skew", table, np.random.default_rng(1))]
    assert max(labels) <= 6 < 16 == table.labels.max() + 1


def test_digits_have_no_writers():
    assert not has("writers", read(None))
    assert has("skew", read(None))


def test_private_and_cut_data_have_same_samples_and_order(packets):
    whole, cut = (task_of(Scene("skew", data=packets), 3, pieces=pieces) for pieces in (1, 4))
    assert len(cut.sizes()) == 4 * CLIENTS
    first = np.concatenate([cut.load(name)[1] for name in list(cut.sizes())[:4]])
    assert first.tolist() == whole.load(next(iter(whole.sizes())))[1].tolist()


def test_shared_data_is_held_once_by_every_client(packets):
    scene = Scene("iid", data=packets)
    alone, together = (task_of(scene, 3, shared=shared).sizes() for shared in (0.0, 0.1))
    assert sum(together.values()) - sum(alone.values()) == shared_samples(scene, 0.1)


@pytest.mark.parametrize("straggler", STRAGGLERS)
@pytest.mark.parametrize("round_steps", [1, 8])
def test_step_time_is_independent_of_round_length(straggler, round_steps):
    steps = 20 * BLOCK
    fine, coarse = (scenario_of(Scene("iid", straggler), steps // each, each, 5) for each in (1, round_steps))
    at = round_steps * (len(coarse) // 2)
    np.testing.assert_allclose(fine[at].pace_wk * round_steps, coarse[len(coarse) // 2].pace_wk)
    assert (fine[at].pace_wk.max() > fine[at].pace_wk.min()) == (straggler != "none")
    deaths = sum(np.isfinite(each.dies_s_w).sum() for each in coarse)
    assert deaths == (straggler == "dead")


def test_transient_stragglers_change_over_time():
    def slow(scenario):
        return {tuple(np.flatnonzero(each.pace_wk[:, 0] > each.pace_wk.min())) for each in scenario}

    assert len(slow(scenario_of(Scene("iid", "persistent"), 20, BLOCK, 0))) == 1
    assert len(slow(scenario_of(Scene("iid", "transient"), 20, BLOCK, 0))) > 5


def test_file_with_missing_field_is_named(tmp_path):
    np.savez(tmp_path / "odd.npz", x_train=np.zeros((2, 4)))
    with pytest.raises(EdgeFailed, match=r"odd\.npz.*needed an npz file with x_train, y_train"):
        read(tmp_path / "odd.npz")
    with pytest.raises(EdgeFailed, match=r"none\.npz: saw No such file or directory, needed"):
        read(tmp_path / "none.npz")


@pytest.mark.parametrize("content", [b"", b"some text", b"PK\x03\x04 cut off"])
def test_file_of_wrong_kind_is_refused_with_plain_message(tmp_path, content):
    (tmp_path / "odd.npz").write_bytes(content)
    with pytest.raises(EdgeFailed, match=r"odd\.npz: saw something else, needed an npz file"):
        read(tmp_path / "odd.npz")
