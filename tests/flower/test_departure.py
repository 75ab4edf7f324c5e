"""Test how a client learns that it has to leave: by a signal, or by the folder of its supervisor."""

import os
import signal
import time
from pathlib import Path

import pytest

from fedgc.flower.departure import Departure
from fedgc.processes import supervision
from fedgc.processes.supervision import ASKED, LEAVE_FOLDER, OWES, SERVES


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_asks_once_and_handler_is_restored(number: signal.Signals):
    before = signal.getsignal(number)
    departure = Departure(30.0)
    assert departure.left_s is None
    with departure.heard():
        os.kill(os.getpid(), number)
        assert departure.asked
        first = departure.left_s
        os.kill(os.getpid(), number)
        assert first is not None
        assert 0 < departure.left_s <= first <= 30.0
    assert signal.getsignal(number) is before


def test_request_in_folder_is_valid_until_its_deadline(tmp_path: Path):
    departure = Departure.of(20.0, {LEAVE_FOLDER: str(tmp_path)})
    assert not departure.asked
    for content, asked in (
        (f"{time.monotonic() + 60}", True),
        (f"{time.monotonic() - 1}", False),
        ("nonsense", False),
    ):
        (tmp_path / ASKED).write_text(content)
        assert departure.asked is asked


@pytest.mark.parametrize("jump_s", [-86_400.0, 86_400.0])
def test_request_keeps_its_time_when_clock_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: float
):
    departure, now = Departure(1.0, tmp_path), time.time()
    departure.answered(owes=False)
    supervision.ask_to_leave(tmp_path, os.getpid(), 45.0)
    monkeypatch.setattr(time, "time", lambda: now + jump_s)
    assert departure.left_s == pytest.approx(45.0, abs=5.0)
    assert not supervision.is_leaving(tmp_path, os.getpid()), "its answer was sent long ago"


def test_serving_process_can_be_asked_by_folder(tmp_path: Path):
    departure = Departure(1.0, tmp_path)
    parent = os.getppid()
    with departure.heard():
        assert [each.name for each in tmp_path.iterdir()] == [f"{SERVES}{os.getpid()}"]
        assert supervision.is_leaving(tmp_path, parent)
        supervision.ask_to_leave(tmp_path, parent, 45.0)
        assert departure.left_s == pytest.approx(45.0, abs=5.0), "the deadline of the request"
    assert not list(tmp_path.glob(f"{SERVES}*"))


def test_stale_file_of_other_process_is_ignored(tmp_path: Path):
    (tmp_path / f"{SERVES}1").touch()
    supervision.ask_to_leave(tmp_path, os.getpid(), 5.0)
    assert not supervision.is_leaving(tmp_path, os.getpid())


def test_client_over_messages_is_waited_for_until_it_owes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(supervision, "DELIVERY_S", 0.0)
    departure = Departure(1.0, tmp_path)
    departure.answered(owes=True)
    assert (tmp_path / OWES).exists()
    assert supervision.is_leaving(tmp_path, os.getpid())
    departure.answered(owes=False)
    assert not supervision.is_leaving(tmp_path, os.getpid())
    monkeypatch.setattr(supervision, "DELIVERY_S", 3600.0)
    assert supervision.is_leaving(tmp_path, os.getpid()), "its SuperNode has still to send the answer"
