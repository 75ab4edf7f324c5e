"""Test checkpoints of simulated training: a stopped simulation goes on with the same bits."""

import json
from contextlib import closing
from dataclasses import replace
from functools import partial
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import numpy as np
import pytest
import torch
from torch import nn

from fedgc.errors import BadSetting, EdgeFailed, ExtensionFailed, Unusable
from fedgc.round.plan import make_plan
from fedgc.sim import checkpoint as checkpoints
from fedgc.sim.checkpoint import Checkpoint
from fedgc.sim.clock import working
from fedgc.sim.training import Job, train
from fedgc.training.round_sum import RoundSum
from fedgc.tuner.planner import Tuner
from tests.outside_package import install
from tests.sim.test_fleet import job
from tests.sim.test_training import config
from tests.sim.uneven_clients import data
from tests.six_chunks import TASK, load

WHOLE = r"^checkpoint .*run.ckpt: saw .*, needed a whole file$"
SEVERAL = r"saw digest of speeds, .*=\w+, .*, learning-rate=0.1 \(and 1 more\), needed digest of .* as when"
RULE = '''
import numpy as np
from fedgc.aggregators.weighted_mean import WeightedMean


class Running(WeightedMean):
    """The running mean of all rounds; it remembers an array of no dimension, then a transposed one."""

    summary = "the running mean"

    def __init__(self):
        super().__init__()
        self.last = np.zeros((), np.float32)

    def result(self):
        mean = super().result()
        if mean is not None:
            self.last = np.asfortranarray(0.5 * self.last + mean.reshape(-1, 2))
        return None if mean is None else self.last.ravel()

    def memory(self):
        return {"last": self.last}

    def recall(self, memory):
        self.last = memory["last"]
'''


@pytest.fixture(autouse=True, scope="module")
def written_often():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "SPARED", 0)
        yield


@pytest.fixture(scope="module")
def kept(tmp_path_factory, written_often):
    """The bytes of a checkpoint of `coded()`."""
    path = tmp_path_factory.mktemp("kept") / "run.ckpt"
    stopped(coded(), path, 4)
    return path.read_bytes()


@pytest.fixture
def path(tmp_path, kept):
    """A checkpoint of `coded()`."""
    made = tmp_path / "run.ckpt"
    made.write_bytes(kept)
    return made


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


def with_checked_outliers() -> Job:
    """So tight a bound that most updates are outliers, of which the evaluations tell the influence."""
    of, rounds = job(), 20
    changes = {"gate_period": 1, "aggregator_options": "factor=0.2", "rounds": rounds, "learning_rate": 0.5}
    inputs, labels = (torch.from_numpy(each) for each in data())

    def evaluate(module):
        return {"loss": float(nn.functional.cross_entropy(module(inputs), labels))}

    task, config = replace(of.task, evaluate=evaluate), replace(of.config, **changes)
    return replace(of, task=task, config=config, scenario=of.scenario * 4)


def test_last_round_is_not_compared_with_other_model():
    of, rounds, evaluated = with_checked_outliers(), [0], []

    def evaluate(module):
        evaluated.append(rounds[-1])
        return of.task.evaluate(module)

    train(replace(of, task=replace(of.task, evaluate=evaluate)), lambda point: rounds.append(point.row.round))
    last = of.config.rounds - 1
    assert (evaluated.count(last - 1), evaluated.count(last)) == (2, 1)


@pytest.mark.parametrize(
    ("of", "rounds"),
    [
        (with_checked_outliers(), (12, 17)),
        (job(codec="int8", download_codec="int8", shared_momentum=0.3, server_optimizer="adam"), (3, 5)),
        (job(gate_period=1, privacy_noise=1.0, privacy_clip_quantile=0.5), (2, 4)),
        (coded(), (4, 6)),
        (coded(server_optimizer="nesterov", blocks=2, gate_period=1), (3, 5)),
        (job(gate_period=1, download_codec="int8", aggregator="krum", aggregator_options="f=9"), (2, 4)),
    ],
    ids=["checked outliers", "local", "private", "coded", "coded with server momentum", "updates left out"],
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


def test_rule_gets_memory_back_in_its_shape(tmp_path, monkeypatch):
    install(tmp_path / "site", monkeypatch, "running_rules", RULE, {"fedgc.aggregators:running": "Running"})
    of = coded(work="local", replicas=1, gate="every", gate_period=1, aggregator="running")
    whole, path = train(of), tmp_path / "run.ckpt"
    stopped(of, path, 4)
    assert np.array_equal(train(of, checkpoint=Checkpoint(path)).model, whole.model)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("return {}['last']", r"memory: saw KeyError: 'last'"),
        ("return None", "memory returned None, needed names with arrays of numbers, bool or text"),
        ("return {'last': 1.0}", "memory returned a float as 'last', needed"),
        ("return {1: self.last}", "memory returned 1 as a name, needed"),
        (
            "return {'seen': np.array(['a', None])}",
            r"memory returned object of shape \(2,\) as 'seen', needed",
        ),
        ("return {'seen': np.zeros(2, 'i4,f8')}", "memory returned .* as 'seen', needed"),
        ("return {'seen': np.zeros(2, 'M8[s]')}", r"memory returned datetime64\[s\] of shape"),
    ],
)
def test_memory_that_no_checkpoint_keeps_is_named(line, message, tmp_path, monkeypatch):
    code = RULE.replace('return {"last": self.last}', line)
    install(tmp_path / "site", monkeypatch, "running_rules", code, {"fedgc.aggregators:running": "Running"})
    with pytest.raises(ExtensionFailed, match=f"^aggregation.rule running: {message}"):
        train(job(aggregator="running"), checkpoint=Checkpoint(tmp_path / "run.ckpt"))


def test_recall_that_raises_is_named(tmp_path, monkeypatch):
    code = RULE.replace('memory["last"]', 'memory["first"]')
    install(tmp_path / "site", monkeypatch, "running_rules", code, {"fedgc.aggregators:running": "Running"})
    of, path = job(aggregator="running"), tmp_path / "run.ckpt"
    stopped(of, path, 3)
    with pytest.raises(ExtensionFailed, match=r"^aggregation.rule running: recall: saw KeyError: 'first'"):
        train(of, checkpoint=Checkpoint(path))


def test_steps_whose_update_does_not_count_are_not_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(RoundSum, "uncounted", property(lambda _: frozenset({"client 1"})))
    of, path = (
        coded(work="local", replicas=1, gate="every", gate_period=1),
        tmp_path / "run.ckpt",
    )
    whole, heard = train(replace(of, keeps_clients=True)), []
    stopped(of, path, 4)
    monkeypatch.setattr(RoundSum, "uncounted", frozenset())
    train(of, heard.append, checkpoint=Checkpoint(path))
    for point in (*whole.points, *heard[:2]):
        counted = {each.client: each.counted for each in point.row.clients}
        assert counted["client 1"] == 0 < counted["client 0"]
    assert any(each.counted for each in heard[-1].row.clients if each.client == "client 1")


def relabelled(name):
    inputs, labels = load(name)
    return inputs, 1 - labels


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"config": {"learning_rate": 0.1, "seed": 5}, "reverse": True}, SEVERAL),
        (
            {"task": {"load": relabelled}},
            r"saw digest of the data=\w+, needed digest of the data=\w+ as when",
        ),
        (
            {"task": {"model": partial(nn.Linear, 5, 2, bias=False)}},
            "saw digest of the first model=.*, needed",
        ),
    ],
    ids=["settings", "data", "model"],
)
def test_checkpoint_of_other_simulation_is_refused(path, changes, says):
    of = coded()
    config, task = (replace(getattr(of, name), **changes.get(name, {})) for name in ("config", "task"))
    scenario = of.scenario[::-1] if "reverse" in changes else of.scenario
    with pytest.raises(Unusable, match=says):
        train(replace(of, config=config, task=task, scenario=scenario), checkpoint=Checkpoint(path))
    with pytest.raises(BadSetting, match="saw engines of the caller"):
        train(replace(job(), engines=lambda *_: None), checkpoint=Checkpoint(path))


@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_damaged_checkpoint_is_refused(path, damage):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes({"cut": data[:-30], "changed": data, "empty": b""}[damage])
    with pytest.raises(EdgeFailed, match=WHOLE):
        train(coded(), checkpoint=Checkpoint(path))


def without(name):
    return lambda parts: {each: data for each, data in parts.items() if each != name}


def told(**changes):
    return lambda parts: {**parts, "about": json.dumps({**json.loads(parts["about"]), **changes})}


def found(first: float):
    def changed(parts):
        numbers = np.frombuffer(parts['["findings"]']).copy()
        numbers[0] = first
        return {**parts, '["findings"]': numbers.tobytes()}

    return changed


@pytest.mark.parametrize(
    ("craft", "says"),
    [
        (without('["optimizer"]'), 'other parts than it lists: \\["optimizer"\\]'),
        (without("about"), "KeyError"),
        (told(turns="many"), "turns as str, not int"),
        (told(noise={}), "ValueError: state must be for a PCG64 RNG"),
        (found(float("nan")), "cannot convert float NaN"),
        (found(-1.0), "missing 3 required"),
        (lambda parts: {**parts, '["model", 1]': bytes(4)}, "cannot reshape array of size 1"),
    ],
    ids=["no optimizer", "about nothing", "types", "noise", "NaN", "length", "model"],
)
def test_crafted_checkpoint_is_refused_in_one_line(path, craft, says):
    rewritten(path, craft)
    with pytest.raises(EdgeFailed, match=f"^checkpoint .*run.ckpt: saw .*{says}"):
        train(coded(), checkpoint=Checkpoint(path))
    assert path.exists()


def rewritten(path, craft, compression=ZIP_STORED):
    with ZipFile(path) as archive:
        parts = craft({name: archive.read(name) for name in archive.namelist()})
    with ZipFile(path, "w", compression) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)


def test_compressed_checkpoint_is_refused(path):
    rewritten(path, dict, ZIP_DEFLATED)
    with pytest.raises(EdgeFailed, match="saw ValueError: compressed parts, needed a whole file"):
        train(coded(), checkpoint=Checkpoint(path))


def test_file_that_is_no_checkpoint_is_refused_in_plain_words(path):
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(EdgeFailed, match=r"saw no checkpoint, or a part of one, needed a whole file$"):
        train(coded(), checkpoint=Checkpoint(path))


@pytest.mark.parametrize("new", [True, False])
def test_checkpoint_of_running_simulation_is_refused(path, new):
    if new:
        path.unlink()
    with closing(Checkpoint(path)) as held:
        assert (held.about() is None) == new
        if new:
            held.reserve()
        with pytest.raises(Unusable, match="saw another process that writes to it, needed it to end first"):
            train(coded(), checkpoint=Checkpoint(path))
    assert list(path.parent.iterdir()) == ([] if new else [path])


def test_file_replaced_meanwhile_changes_nothing(path):
    newer = path.with_name("newer.ckpt")
    stopped(coded(), newer, 6)
    whole = train(coded())

    def heard(point):
        if point.row.round == 1:
            newer.replace(path)

    assert np.array_equal(train(coded(), heard, checkpoint=Checkpoint(path)).model, whole.model)


def test_end_before_checkpoint_is_refused_and_file_kept(path, kept):
    with pytest.raises(EdgeFailed, match=r"simulation end after round 1, needed .* written after round 2"):
        train(coded(), until=lambda point: point.row.round == 1, checkpoint=Checkpoint(path))
    assert path.read_bytes() == kept


def test_resumed_simulation_waits_until_next_checkpoint(tmp_path, monkeypatch):
    path, of = tmp_path / "run.ckpt", job(gate_period=1)
    stopped(of, path, 3)
    data = path.read_bytes()
    monkeypatch.setattr(checkpoints, "SPARED", 1e9)
    stopped(of, path, 4)
    assert path.read_bytes() == data


class Turned(Tuner):
    """Gives the work of two replicas, whatever the setting."""

    def plan(self, request):
        if request.present and not request.anew:
            return request.present
        config = replace(self._config, replicas=2)
        return make_plan(request.fleet, request.speeds, config, steps=config.round_steps)


def test_other_course_than_before_is_noticed(tmp_path):
    path, of = tmp_path / "run.ckpt", coded(replicas="auto")
    stopped(of, path, 4)
    says = r"run.ckpt: the simulation takes another course in round \d: saw .*, needed .* as before$"
    with pytest.raises(EdgeFailed, match=says):
        train(replace(of, planner=Turned(of.config)), checkpoint=Checkpoint(path))
