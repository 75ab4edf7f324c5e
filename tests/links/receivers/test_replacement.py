"""Test the processes that take the place of receivers that have ended."""

import os
import signal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedgc.links.identity import Identity
from fedgc.messages import Joined, Lost
from tests.links.conftest import Link
from tests.links.receivers.conftest import Served


def replace_all(served: Served) -> None:
    """Kill all receivers, and wait until others serve in their places."""
    before = set(served.sessions.pids)
    for each in before:
        os.kill(each, signal.SIGKILL)
    Link.eventually(lambda: before.isdisjoint(served.sessions.pids))


def refusal(served: Served, who: Identity) -> str:
    """Return what a client is told that is not admitted."""
    session = served.session(who)
    Link.eventually(lambda: session.receive(0.05) or session.ended)
    return session.ended


def test_new_receivers_know_excluded_clients(serve):
    served = serve(2)
    who = Identity(Ed25519PrivateKey.generate())
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
