from typing import ClassVar

import pytest
import torch

from fedgc.config import RunConfig
from fedgc.errors import BadSetting
from fedgc.training.devices import autocast, choose, to_device


def test_auto_selects_best_available_device(monkeypatch):
    for cuda, mps, best in ((True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=cuda: there)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda there=mps: there)
        assert choose("auto").type == best
    assert choose("cpu") == torch.device("cpu")


def test_missing_device_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert choose("cuda:0").index == 0
    with pytest.raises(BadSetting, match="saw 'cuda:1', but this machine has 1 CUDA device"):
        choose("cuda:1")
    with pytest.raises(BadSetting, match="no MPS device"):
        choose("mps")


def test_autocast_follows_settings_and_not_caller():
    product = {}
    for precision in ("float32", "bf16"):
        with (
            torch.autocast("cpu"),
            autocast(torch.device("cpu"), RunConfig(precision=precision, work="coded")),
        ):
            product[precision] = torch.nn.Linear(2, 2)(torch.ones(1, 2)).dtype
    assert product == {"float32": torch.float32, "bf16": torch.bfloat16}


def test_copy_to_cuda_is_pinned_and_asynchronous():
    """Check fake tensors: pinned first, then copied without blocking."""

    class Pretended:
        device = torch.device("cpu")
        told: ClassVar[list] = []

        def pin_memory(self):
            self.told.append("pinned")
            return self

        def to(self, device, **how):
            self.told.append((device.type, how))
            return self

    to_device(Pretended(), torch.device("cuda"))
    to_device(Pretended(), torch.device("cpu"))
    assert Pretended.told == ["pinned", ("cuda", {"non_blocking": True}), ("cpu", {})]


@pytest.mark.gpu
def test_asynchronous_copies_to_cuda_are_complete():
    """Each source is freed at once and its memory reused, so a late copy would be wrong."""
    sources = [torch.full((1 << 20,), float(number)) for number in range(32)]
    replicas = [to_device(source * 2, torch.device("cuda")) for source in sources]
    assert all(copy.is_cuda for copy in replicas)
    assert all(torch.equal(copy.cpu(), source * 2) for copy, source in zip(replicas, sources, strict=True))
