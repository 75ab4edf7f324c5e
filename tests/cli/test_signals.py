"""Signals that end a command: the first is Ctrl-C, others let it clean up."""

import os
import signal

import pytest

from fedgc.cli import signals as ending
from fedgc.cli.signals import ENDING, like_ctrl_c

pytestmark = pytest.mark.usefixtures("signals")


@pytest.mark.parametrize("number", ENDING)
def test_the_first_signal_is_ctrl_c_and_no_other_breaks_into_the_cleaning(number):
    before, cleaned = [signal.getsignal(each) for each in ENDING], []

    def work() -> None:
        try:
            os.kill(os.getpid(), number)
        finally:
            for each in ENDING:
                os.kill(os.getpid(), each)
                cleaned.append(each)

    with pytest.raises(KeyboardInterrupt), like_ctrl_c():
        work()
    assert tuple(cleaned) == ENDING
    assert [signal.getsignal(each) for each in ENDING] == before


def test_a_signal_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with like_ctrl_c():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_terminal_that_is_gone_breaks_no_cleaning(monkeypatch):
    near, far = os.openpty()
    monkeypatch.setattr(ending, "SPOKEN_TO", (far,))

    def work() -> None:
        try:
            os.close(near)
            os.kill(os.getpid(), signal.SIGHUP)
        finally:
            os.write(far, b"words")

    with pytest.raises(KeyboardInterrupt), like_ctrl_c():
        work()
    os.close(far)
