"""Test the processes that take the place of receivers that have ended."""

import logging
import os
import resource
import secrets
import signal
import socket
import struct
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fedgc.errors import EdgeFailed, NotNow
from fedgc.links.identity import Identity
from fedgc.links.receivers import receiver, receivers
from fedgc.links.receivers.pipe import Pipe
from fedgc.links.receivers.receiver import Reactions, Receiver
from fedgc.links.session.sessions import Surroundings
from fedgc.messages import Codeword, Joined, Lost
from tests.links.conftest import Link
from tests.links.receivers.conftest import NUMBERS, Served


def kill_all(served: Served) -> None:
    for each in served.sessions.pids:
        os.kill(each, signal.SIGKILL)


def replace_all(served: Served) -> None:
    """Kill all receivers, and wait until others serve in their places."""
    before = set(served.sessions.pids)
    kill_all(served)
    Link.eventually(lambda: before.isdisjoint(served.sessions.pids))


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def refusal(served: Served, who: Identity) -> str:
    """Return what a client is told that is not admitted."""
    session = served.session(who)
    Link.eventually(lambda: session.receive(0.05) or session.ended)
    return session.ended


def test_new_receivers_know_excluded_clients(serve):
    served = serve(2)
    who = Identity(secrets.token_bytes(32))
    served.session(who)
    served.event(Joined)
    for _ in range(5):  # for 5 s, then 10, 20, 40, 80
        served.link.exclude(who.client, "it waits")
    served.event(Lost)
    Link.eventually(lambda: [each[0] for each in served.audit].count("excluded") == 5)
    replace_all(served)
    for _ in range(2):
        assert "excluded" in refusal(served, who)
    served.quotas.exclude(who.client, "it waits again", 0.0)
    assert served.quotas.pauses()[who.client].pause_s == 160.0


def test_client_of_killed_receiver_can_be_excluded(serve):
    served = serve(2)
    who = Identity(secrets.token_bytes(32))
    served.session(who)
    served.event(Joined)
    replace_all(served)
    served.event(Lost)
    for _ in range(5):
        served.link.exclude(who.client, "it waits")
    for _ in range(2):
        assert "excluded" in refusal(served, who)


def said(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return any(text in each for each in caplog.messages)


def test_no_call_waits_for_receiver_that_starts(monkeypatch, serve, tmp_path, caplog):
    served = serve(2)
    first, other = served.sessions.pids
    (tmp_path / "never_ready.py").write_text("import signal\nsignal.pause()\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setattr(receiver, "MODULE", "never_ready")
    monkeypatch.setattr(receiver, "END_S", 0.1)
    os.kill(first, signal.SIGKILL)
    Link.eventually(lambda: served.sessions.pids[0] != first)
    served.link.publish(0, np.zeros(NUMBERS, np.float32))
    served.link.expect(NUMBERS)
    assert served.sessions.invite()
    assert served.sessions.pids[1] == other
    assert not said(caplog, "cannot start")


def test_receiver_that_cannot_start_is_started_again(monkeypatch, serve, caplog):
    served = serve(2)
    monkeypatch.setattr(receivers, "FIRST_PAUSE_S", 0.01)
    with monkeypatch.context() as broken:
        broken.setattr(receiver, "MODULE", "fedgc.links.receivers.nothing")
        kill_all(served)
        Link.eventually(lambda: said(caplog, "a receiver cannot start"))
        with pytest.raises(NotNow):
            served.sessions.invite()
    served.session()
    served.event(Joined)


def test_run_ends_with_its_reason_once_no_receiver_is_left(monkeypatch, serve, caplog):
    monkeypatch.setattr(receivers, "MOST_STARTS", 0.0)
    served = serve(2)
    kill_all(served)
    Link.eventually(lambda: said(caplog, "a receiver has ended too often: 0 are left"))
    with pytest.raises(EdgeFailed, match="all 2 have ended") as caught:
        served.sessions.invite()
    assert not isinstance(caught.value, NotNow)


def test_bytes_of_killed_receiver_count(serve):
    served = serve(2)
    session = served.session()
    client = served.event(Joined).client
    served.upload(session, client, np.zeros(NUMBERS, np.float32))
    replace_all(served)
    assert served.link.settle(client).up_bytes >= 4 * NUMBERS
    assert served.link.settle(client).up_bytes == 0


def test_invitation_ends_with_its_receiver(serve):
    served = serve(2)
    before = [served.invitation() for _ in range(2)]
    assert all(map(served.sessions.serves, before))
    replace_all(served)
    assert not any(map(served.sessions.serves, before))
    assert served.sessions.serves(served.invitation())


def test_receiver_that_stands_still_is_left_out_for_that_time(monkeypatch, serve):
    served = serve(2)
    first, _ = served.sessions.pids
    before = [served.invitation() for _ in range(2)]
    monkeypatch.setattr(receiver, "ANSWER_S", 0.05)
    os.kill(first, signal.SIGSTOP)
    during = {served.invitation().address for _ in range(4)}
    os.kill(first, signal.SIGCONT)
    assert during == {before[1].address}
    Link.eventually(lambda: served.invitation().address == before[0].address)


def test_receiver_that_never_answers_is_ended(monkeypatch, serve, caplog):
    monkeypatch.setattr(receiver, "SILENT_S", 1.5)
    monkeypatch.setattr(receiver, "END_S", 0.1)
    served = serve(2)
    who = Identity(secrets.token_bytes(32))
    served.session(who)
    served.event(Joined)
    first, _ = served.sessions.pids
    os.kill(first, signal.SIGSTOP)
    served.event(Lost)
    assert said(caplog, f"receiver {first}: it does not answer")
    Link.eventually(lambda: first not in served.sessions.pids)
    served.session(who)
    served.event(Joined)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs the limits of another process")
def test_receiver_without_memory_for_model_says_so(serve, caplog):
    served = serve(2)
    first, _ = served.sessions.pids
    used = int(Path(f"/proc/{first}/statm").read_text().split()[0]) * resource.getpagesize()
    limit = used + 10 * 2**20
    resource.prlimit(first, resource.RLIMIT_AS, (limit, limit))
    served.link.publish(0, np.zeros(5 * 2**20, np.float32))
    Link.eventually(lambda: first not in served.sessions.pids)
    assert said(caplog, f"receiver {first}: it ends: Cannot allocate memory")


def test_files_of_message_that_cannot_be_opened_are_named():
    near, far = map(Pipe, socket.socketpair())
    files = [os.memfd_create("test") for _ in range(3)]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        near.send("three files", files)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(files) + 2, limits[1]))
        with pytest.raises(OSError, match="too many open files"):
            far.receive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for each in files:
            os.close(each)
        near.close()
        far.close()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs the open files of a process")
def test_process_that_is_killed_in_mid_message_leaves_no_file_open():
    ours, theirs = socket.socketpair()
    far = Pipe(theirs)
    files = [os.memfd_create("test") for _ in range(3)]
    before = open_files()
    socket.send_fds(ours, [struct.pack("<Q", 1000)], files)
    ours.sendall(b"half of it")
    ours.shutdown(socket.SHUT_RDWR)
    with pytest.raises(EOFError, match="the other process has ended"):
        far.receive()
    assert open_files() == before
    for each in files:
        os.close(each)
    ours.close()
    far.close()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs the open files of a process")
def test_files_behind_vector_that_cannot_be_mapped_are_closed():
    near, far = map(Pipe, socket.socketpair())
    files = [os.memfd_create("test") for _ in range(3)]  # empty: no vector
    around = Surroundings(time.monotonic, os.urandom, time.time, logging.getLogger("test"))
    receiver = Receiver(None, around, Reactions(None, None, None, None), {})
    before = open_files()
    near.send([])
    said = Codeword(0.0, "a", 1, 0)
    near.send([("codeword", said, ("<f4", 1))] * 3, files)
    with pytest.raises(ValueError, match="empty"):
        receiver._hear(far)
    assert open_files() == before
    for each in files:
        os.close(each)
    near.close()
    far.close()
