"""Fixtures for tests of commands."""

import signal

import pytest


@pytest.fixture
def signals():
    """Set signals as for a foreground program: `nohup` and `&` ignore some."""
    usual = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
