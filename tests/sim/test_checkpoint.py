"""Test checkpoints of simulated training: a stopped simulation goes on with the same bits."""

from dataclasses import replace

import numpy as np
import pytest

from fedgc.errors import BadSetting, EdgeFailed, Unusable
from fedgc.sim import checkpoint as checkpoints
from fedgc.sim.checkpoint import Checkpoint
from fedgc.sim.clock import working
from fedgc.sim.training import Job, train
from tests.sim.test_fleet import job
from tests.sim.test_training import config
from tests.six_chunks import TASK


@pytest.fixture(autouse=True)
def written_often(monkeypatch):
    monkeypatch.setattr(checkpoints, "SPARED", 0)


def coded(**changes) -> Job:
    """Four clients with latency, one of which dies in the second round and comes back."""
    calm = working([[1.0], [1.2], [1.5], [4.0]], control_s=0.02, up_s=0.1)
    dies_s_w, returns_s_w = np.full(4, np.inf), np.full(4, np.inf)
    dies_s_w[1], returns_s_w[1] = 0.4, 0.9
    dying = replace(calm, dies_s_w=dies_s_w, returns_s_w=returns_s_w)
    return Job(TASK, config(**{"rounds": 6, "gate_period": 2, **changes}), (calm, dying, *(calm,) * 4))


def stopped(of: Job, path, rounds: int, **options) -> Checkpoint:
    """Train until Ctrl-C at the end of a round."""

    def heard(point):
        if point.row.round == rounds:
            raise KeyboardInterrupt

    checkpoint = Checkpoint(path, options)
    with pytest.raises(KeyboardInterrupt):
        train(of, heard, checkpoint=checkpoint)
    return checkpoint


@pytest.mark.parametrize(
    ("of", "rounds"),
    [
        (job(codec="int8", shared_momentum=0.3, server_optimizer="adam"), (3, 5)),
        (job(gate_period=1, privacy_noise=1.0, privacy_clip_quantile=0.5), (2, 4)),
        (coded(), (4, 6)),
        (coded(shared_momentum=0.3, blocks=2, gate_period=1), (3, 5)),
    ],
    ids=["local", "private", "coded", "coded with momentum"],
)
def test_resumed_simulation_gives_same_bits(tmp_path, of, rounds):
    path = tmp_path / "run.ckpt"
    whole = train(of)
    written = [stopped(of, path, each).rounds for each in rounds]
    assert written == sorted({*written}), "each start went further"
    assert 0 < written[0] < rounds[0]
    heard = []
    resumed = train(of, heard.append, checkpoint=Checkpoint(path))
    assert np.array_equal(resumed.model, whole.model)
    assert repr(resumed.points) == repr(whole.points)
    assert [point.row.round for point in heard] == [point.row.round for point in whole.points]
    assert not path.exists(), "it is over"


def test_checkpoint_of_other_simulation_is_refused(tmp_path):
    path, of = tmp_path / "run.ckpt", coded()
    stopped(of, path, 4)
    other = replace(of, config=replace(of.config, learning_rate=0.1, seed=5), scenario=of.scenario[::-1])
    with pytest.raises(
        Unusable, match=r"saw digest of speeds, .*=\w+, learning-rate=0.1, seed=5, needed digest"
    ):
        train(other, checkpoint=Checkpoint(path))
    with pytest.raises(BadSetting, match="saw engines of the caller"):
        train(replace(job(), engines=lambda *_: None), checkpoint=Checkpoint(path))


@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_damaged_checkpoint_is_refused(tmp_path, damage):
    path, of = tmp_path / "run.ckpt", coded()
    stopped(of, path, 4)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes({"cut": data[:-30], "changed": data, "empty": b""}[damage])
    with pytest.raises(EdgeFailed, match=r"^checkpoint .*run.ckpt: saw .*, needed a whole file$"):
        train(of, checkpoint=Checkpoint(path))


def test_other_course_than_before_is_noticed(tmp_path, monkeypatch):
    path, of = tmp_path / "run.ckpt", coded()
    stopped(of, path, 4)
    monkeypatch.setattr(Job, "description", lambda _: Checkpoint(path).about()["of"])
    with pytest.raises(EdgeFailed, match="takes another course than before"):
        train(
            replace(of, scenario=tuple(replace(each, up_s_w=each.up_s_w * 9) for each in of.scenario)),
            checkpoint=Checkpoint(path),
        )
