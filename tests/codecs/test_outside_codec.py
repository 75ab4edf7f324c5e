"""Test a codec from another package: one class and one entry point."""

import re

import numpy as np
import pytest

from fedgc.codecs import make_codec
from fedgc.config import RunConfig
from fedgc.errors import BadSetting, BadVector, Refused
from fedgc.large_vectors import Scratch
from fedgc.links.frames import StreamId
from fedgc.links.pieces import Form, Incoming, Outgoing, Source, offer_of, shortened
from fedgc.sim.clock import MODELS
from fedgc.sim.training import Job, train
from tests.outside_package import install
from tests.six_chunks import TASK

CODEC = '''
import numpy as np
from fedgc.codecs import Codec

class Largest(Codec):
    """Sends the largest numbers with their positions."""

    summary = "the share of the numbers that are largest"
    fixed = False

    def __init__(self, *, share: float = 0.1):
        self.share = share

    def largest(self, size):
        return 8 * size

    def expected(self, size):
        return 8 * max(1, round(self.share * size))

    def encode(self, vector, rng):
        count = max(1, round(self.share * vector.size))
        places = np.argpartition(np.abs(vector), -count)[-count:]
        places = places[vector[places] != 0]
        places = np.sort(places if places.size else np.zeros(1, int)).astype("<u4")
        return np.concatenate([places.view(np.uint8), vector[places].astype("<f4").view(np.uint8)])

    def decode(self, data, size):
        count = data.size // 8
        vector = np.zeros(size, np.float32)
        vector[data[: 4 * count].view("<u4")] = data[4 * count :].view("<f4")
        return vector

class Broken(Codec):
    """Does one thing wrong."""

    def __init__(self, *, how: str = "raises"):
        self.how = how
        self.fixed = how != "varies"

    def encode(self, vector, rng):
        if self.how == "list":
            return vector.tolist()
        data = vector.astype("<f4").view(np.uint8)
        return np.repeat(data, 2)[::2] if self.how == "strided" else data

    def decode(self, data, size):
        vector = data.view("<f4").astype(np.float32)
        if self.how == "raises":
            raise ValueError("boom")
        decoded = {"short": vector[:4], "long": np.zeros(size + 1, np.float32), "wide": vector.astype(float)}
        return decoded.get(self.how, vector)

    def largest(self, size):
        odd = {"none": None, "float": 4.0 * size, "zero": 0}
        if self.how == "fails":
            raise ValueError("boom")
        return odd.get(self.how, 2 * size if self.how in ("small", "varies") else 4 * size)


class Half(Codec):
    def encode(self, vector, rng):
        return vector.view(np.uint8)
'''
GROUP = "fedgc.codecs"
NAMES = {f"{GROUP}:largest": "Largest", f"{GROUP}:half": "Half", f"{GROUP}:broken": "Broken"}
STREAM = StreamId("codeword", 1, 0)


@pytest.fixture(autouse=True)
def outside(tmp_path, monkeypatch):
    install(tmp_path / "site", monkeypatch, "ward_codecs", CODEC, NAMES)
    make_codec.cache_clear()
    yield
    make_codec.cache_clear()


def config(**changes) -> RunConfig:
    values = {
        "rounds": 6, "work": "local", "gate": "every", "local_steps": 2, "batch_size": 4, "min_clients": 3,
        "device": "cpu", "shared_momentum": "off",
    }  # fmt: skip
    return RunConfig(**{**values, **changes})


def trained(**changes):
    scenario = MODELS["homogeneous"](3, changes.get("rounds", 6), np.random.default_rng(0))
    return train(Job(TASK, config(**changes), scenario))


def test_simulated_run_sends_fewer_bytes_with_outside_codec():
    plain, sparse = trained(), trained(codec="largest share=0.25")
    assert sparse.points[-1].sent == pytest.approx(0.5 * plain.points[-1].sent, rel=0.2)
    assert (sparse.model != plain.model).any()


def test_error_feedback_sends_rounding_error_later():
    plain, sparse = trained(rounds=40), trained(rounds=40, codec="largest share=0.25")
    start = trained(rounds=1).model
    assert np.linalg.norm(sparse.model - plain.model) < 0.5 * np.linalg.norm(plain.model - start)


def received(data: np.ndarray, numbers: int) -> np.ndarray:
    """Return the vector that a server decodes from these bytes."""
    sent = Source(data)
    source = Outgoing(offer_of(STREAM, sent), sent, 64)
    sink = Incoming(source.offer, Form(numbers, "largest share=0.25"), Scratch())
    while (piece := source.next_piece()) is not None:
        sink.accept(piece)
        source.acknowledge(sink.received)
    return sink.finish()


def test_vectors_of_any_size_are_decoded():
    vector = np.random.default_rng(0).normal(size=100).astype(np.float32)
    for numbers in (vector, np.where(np.arange(100) < 3, vector, np.float32(0)).astype(np.float32)):
        data = shortened(numbers, "largest share=0.25", STREAM, "me")
        arrived = received(data, 100)
        assert data.nbytes <= 200
        largest = np.sort(np.abs(numbers))[-25]
        np.testing.assert_array_equal(arrived, np.where(np.abs(numbers) >= max(largest, 1e-9), numbers, 0))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (np.full(16, 255, np.uint8), "codec largest share=0.25 cannot read it: index"),
        (np.full(13, 7, np.uint8), "codec largest share=0.25 cannot read it"),
        (np.zeros(900, np.uint8), "saw 900 bytes, needed 1 to 800"),
    ],
)
def test_invalid_bytes_are_refused_by_name(data, says):
    with pytest.raises(BadVector, match=says):
        received(data, 100)


def test_numbers_missing_before_buffers_are_refused():
    data = np.zeros(4 * 12, np.uint8)
    with pytest.raises(BadVector, match="how=short cannot read it: decode returned 4 numbers, needed 10"):
        Form(12, "broken how=short", exact=2).unpacked(data, STREAM)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("none", "codec broken: largest(1048576) returned None, needed a whole number of bytes"),
        ("float", "codec broken: largest(1048576) returned a float, needed a whole number of bytes"),
        ("zero", "codec broken: largest(1048576) returned 0, needed a whole number of bytes"),
        ("fails", "codec broken: saw ValueError: boom"),
    ],
)
def test_codec_of_no_size_is_refused_before_run(how, says):
    with pytest.raises(BadSetting, match=f"^{re.escape(says)}$"):
        config(codec=f"broken how={how}")


BROKEN = [
    ("raises", "saw ValueError: boom"),
    ("short", "decode returned 4 numbers, needed 12"),
    ("long", "decode returned 13 numbers, needed 12"),
    ("wide", "decode returned float64 of shape (12,), needed float32 of shape (12,)"),
    ("list", "encode returned a list, needed a one-dimensional array of uint8"),
    ("small", "encode returned 48 bytes for 12 numbers, needed 24, as `largest` says"),
    ("varies", "encode returned 48 bytes for 12 numbers, needed 1 to 24, as `largest` says"),
]


@pytest.mark.parametrize(("how", "says"), BROKEN)
def test_broken_codec_ends_simulation_and_is_named(how, says):
    named = f"codec broken how={how} (the update of client 0): {says}"
    with pytest.raises(Refused, match=f"^{re.escape(named)}$"):
        trained(codec=f"broken how={how}")


def test_codec_may_return_any_view_of_its_bytes():
    done = trained(codec="broken how=strided")
    assert (done.model == trained(codec="broken how=well").model).all()


def test_codec_is_documented_and_options_are_checked():
    says = next(says for name, _, says in RunConfig.explained() if name == "links.codec")
    assert "largest: the share of the numbers that are largest" in says
    for wrong, told in (
        ("largest share=x", "setting links.codec: saw share='x', needed a number"),
        ("largest bits=3", "setting links.codec: saw 'bits', needed share, the options of codec largest"),
        ("largst", "did you mean largest"),
    ):
        with pytest.raises(BadSetting, match=told):
            config(codec=wrong)


def test_codec_without_its_methods_is_named():
    with pytest.raises(BadSetting, match=r"^codec half: saw TypeError: Can't instantiate .* decode.*largest"):
        config(codec="half")


@pytest.mark.parametrize(
    "changes", [{"work": "coded"}, {"secrecy": "masked", "federation": "all.fed", "gate": "every"}]
)
def test_codec_is_refused_with_coded_or_masked_updates(changes):
    with pytest.raises(BadSetting, match=r"setting links\.codec: saw largest, needed"):
        config(codec="largest", **changes)
