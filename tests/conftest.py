"""Hypothesis profiles: fixed examples by default, new ones by `make fuzz`; and masked sites.

The default run uses the same examples every time, so its result depends on the code alone. An example that a
search finds is added to the test. (Hypothesis also draws numbers and words from loaded modules, so examples
may differ where other modules are loaded: a strategy must be correct for everything it can draw.)

Garbage collection is off while thousands of tests are collected, and skips those objects later. A shell that
starts the tests in the background ignores Ctrl-C for them; the commands that they start must hear it."""

import gc
import signal
from collections.abc import Callable

import pytest
from hypothesis import settings

from tests.party import MODEL, Party

settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("search", max_examples=400, deadline=None, derandomize=False, print_blob=True)
settings.load_profile("same")


def pytest_configure() -> None:
    gc.disable()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def party() -> Callable[..., Party]:
    return Party


@pytest.fixture(scope="session")
def model_digest() -> bytes:
    return MODEL
