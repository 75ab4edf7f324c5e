"""Test signals that end a command: the first acts as Ctrl-C, later ones let it clean up."""

import os
import signal

import pytest

from fedgc.cli import signals as ending
from fedgc.cli.signals import ENDING, like_ctrl_c

pytestmark = pytest.mark.usefixtures("signals")


@pytest.mark.parametrize("number", ENDING)
def test_later_signals_do_not_break_cleanup(number):
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


def test_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with like_ctrl_c():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_closed_terminal_does_not_break_cleanup(monkeypatch):
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
