"""Test a code from another package: one class and one entry point."""

import numpy as np
import pytest

from fedgc.codes import code_named
from fedgc.config import RunConfig
from fedgc.errors import BadSetting, ExtensionFailed
from fedgc.sim.clock import MODELS
from fedgc.sim.training import Job, train
from tests.outside_package import install
from tests.six_chunks import TASK

CODE = '''
import numpy as np
from fedgc.codes import GaussianCode

MADE = []

class Uniform(GaussianCode):
    """A column of uniform numbers for each client."""

    summary = "uniform columns"

    @classmethod
    def make(cls, placement, blocks, seed):
        MADE.append(blocks)
        return cls(placement, blocks, np.random.default_rng(seed + 1))
'''


@pytest.fixture
def outside(tmp_path, monkeypatch):
    install(tmp_path / "site", monkeypatch, "ward_codes", CODE, {"fedgc.codes:uniform": "Uniform"})


def config(**changes) -> RunConfig:
    values = {
        "work": "coded", "rounds": 3, "local_steps": 2, "batch_size": 4, "min_clients": 3, "replicas": 2,
        "blocks": 2, "device": "cpu",
    }  # fmt: skip
    return RunConfig(**{**values, **changes})


def model(**changes) -> np.ndarray:
    scenario = MODELS["homogeneous"](3, 3, np.random.default_rng(0))
    return train(Job(TASK, config(**changes), scenario)).model


@pytest.mark.parametrize("code", ["gaussian", "uniform"])
def test_every_code_gives_same_sum(outside, code):
    np.testing.assert_allclose(model(code=code), model(), atol=1e-4)


def test_outside_code_is_used(outside):
    model(code="uniform")
    import ward_codes  # the package exists within this test

    assert set(ward_codes.MADE) == {2}


def test_failing_code_is_named(outside, monkeypatch):
    monkeypatch.setattr(code_named("uniform"), "_frame", lambda *_: {}["column"])
    with pytest.raises(ExtensionFailed, match=r"^code.name uniform, 2 blocks: saw KeyError: 'column'$"):
        model(code="uniform")


@pytest.mark.parametrize(
    ("columns", "seen"),
    [
        (np.ones((2, 2)), r"float64 of shape \(2, 2\)"),
        (np.full((2, 3), np.nan), "numbers that are not finite"),
        ([[1.0] * 3] * 2, "a list"),
    ],
)
def test_columns_that_are_wrong_are_named(outside, monkeypatch, columns, seen):
    monkeypatch.setattr(code_named("uniform"), "matrix_bw", columns)
    says = rf"^code.name uniform, 2 blocks: matrix_bw returned {seen}, needed finite floats of shape \(2, 3\)"
    with pytest.raises(ExtensionFailed, match=says):
        model(code="uniform")


def test_make_that_returns_no_code_is_named(outside, monkeypatch):
    monkeypatch.setattr(code_named("uniform"), "make", lambda *_: None)
    with pytest.raises(
        ExtensionFailed, match=r"^code.name uniform, 2 blocks: make returned None, needed a code$"
    ):
        model(code="uniform")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"code": "unifrom"}, "setting code.name: saw 'unifrom', needed one of frame, gaussian"),
        ({"code": "gaussian", "work": "local"}, "saw gaussian, needed work = coded with it"),
        (
            {"code": "gaussian", "secrecy": "masked", "federation": "all.fed"},
            "saw gaussian, needed frame with secrecy = masked",
        ),
    ],
)
def test_unusable_code_is_refused_by_name(changes, says):
    with pytest.raises(BadSetting, match=says):
        config(**changes)
