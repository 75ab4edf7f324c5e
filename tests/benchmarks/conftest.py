"""Fixtures for tests of benchmarks."""

from collections.abc import Iterator
from importlib import import_module

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def few_futures() -> Iterator[None]:
    """Replay each plan in two futures: eight take four times as long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("fedgc.tuner.choose"), "CONFIRMED", 2)
        yield
