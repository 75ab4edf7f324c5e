"""Test the grid loop on a simulated grid: invitations, packets, and the meaning of replies."""

import logging
import math
import os
import threading
from dataclasses import replace

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedgc.errors import EdgeFailed, NotAllowed, NotNow
from fedgc.links.frames import Invitation
from fedgc.links.message import packets as packets
from fedgc.links.message.grid_loop import PACKETS_POLL_S, POLL_S, SHORT_S, SLACK_S, GridLoop, Ways
from fedgc.links.message.invitation import RECORD, invited, refusal
from fedgc.links.message.server import OVERHEAD_S, MessageServer
from fedgc.links.session.client import Session
from fedgc.links.session.sessions import Surroundings
from fedgc.messages import Held, Joined, Lost, Work

JOINED = Joined(0.0, "x", False, (Held("a", 1),))


@pytest.fixture(autouse=True)
def task(monkeypatch) -> None:
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class PlayedGrid:
    def __init__(self) -> None:
        self.nodes = [1]
        self.sent: list[Message] = []
        self.replies: list[Message] = []
        self.asked = 0
        self.takes = True

    def get_node_ids(self) -> list[int]:
        self.asked += 1
        return self.nodes

    def push_messages(self, messages) -> list[str | None]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"m{len(self.sent)}"
            self.sent.append(message)
            ids.append(message.metadata.message_id if self.takes else None)
        return ids

    def pull_messages(self, ids) -> list[Message]:
        found = [each for each in self.replies if each.metadata.reply_to_message_id in ids]
        self.replies = [each for each in self.replies if each not in found]
        return found


class House:
    """A grid loop with its own clock; the test calls its turns."""

    def __init__(
        self, link, listener=None, message_server: bool = True, run: str = "run@1", **fleet: int
    ) -> None:
        self.now = 100.0
        self.grid = PlayedGrid()
        self.events: list[object] = []
        around = Surroundings(lambda: self.now, os.urandom, lambda: 0.0, logging.getLogger("test"))
        self.message_server = MessageServer(run, 10, self.events.append, around) if message_server else None
        self.who = link.identity()
        self.ways = Ways(listener, self.message_server, 1000.0, **fleet)
        self.audits: list[tuple[str, str, str]] = []
        self.grid_loop = GridLoop(
            self.grid,
            self.ways,
            lambda: self.now,
            logging.getLogger("test"),
            lambda *each: self.audits.append(each),
        )

    def turn(self, after_s: float = POLL_S) -> list[Message]:
        """Let time pass and the grid loop act; return its messages."""
        before = len(self.grid.sent)
        self.now += after_s
        self.grid_loop._turn()
        return self.grid.sent[before:]

    def session_ends(
        self, message: Message, *, reached: bool, says_who: bool = True, left: bool = False
    ) -> None:
        content = RecordDict()
        if not reached and says_who:
            invitation = invited(message.content)
            asked = packets.introduction(invitation.run, invitation.token)
            content = packets.write_answer(asked, self.who, "n", [JOINED], {})
        content[RECORD] = ConfigRecord({"ended": "so", "device": "d", "reached": reached, "left": left})
        self.grid.replies.append(Message(content, reply_to=message))

    def refuses(self, message: Message, again_s: float) -> None:
        refused = NotAllowed("site.toml, line 2 (hours.open): not now", again_s, "north")
        self.grid.replies.append(Message(RecordDict({RECORD: refusal(refused)}), reply_to=message))

    def answers(self, message: Message) -> None:
        asked = packets.read_packet(message.content, self.who.client)
        self.grid.replies.append(
            Message(packets.write_answer(asked, self.who, "n", [JOINED], {}), reply_to=message)
        )

    def fails(self, message: Message, code: int, reason: str = "gone") -> None:
        reply = Message(Error(code=code, reason=reason), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = 1  # as the SuperLink's own errors
        self.grid.replies.append(reply)


def types(messages: list[Message]) -> list[str]:
    return [message.metadata.message_type for message in messages]


def joined(house: House) -> list[object]:
    """Return the events of a client that joins now."""
    return [replace(JOINED, now=house.now, client=house.who.client)]


def test_node_without_session_identifies_itself(link) -> None:
    house = House(link, link.listener, run="run-1")
    (invitation,) = house.turn()
    assert types([invitation]) == ["train.session"]
    house.session_ends(invitation, reached=False)
    assert house.turn() == [], "what the first packet would ask is known"
    assert house.events == joined(house)
    house.message_server.send(Work(house.who.client, 1, 0, 1, (0,), ((0, "a"),), 0, 60.0))
    assert types(house.turn()) == [packets.TYPE]


def test_node_without_identification_is_asked_again(link) -> None:
    house = House(link, link.listener, run="run-1")
    (invitation,) = house.turn()
    house.session_ends(invitation, reached=False, says_who=False)
    assert house.turn() == house.events == []
    (packet,) = house.turn()
    assert types([packet]) == [packets.TYPE]
    house.answers(packet)
    house.turn(0.05)
    assert house.events == joined(house)
    assert house.turn(3600.0) == []


@pytest.mark.parametrize("content", [{}, {RECORD: ConfigRecord()}, {"another": ConfigRecord({"a": 1})}])
def test_malformed_reply_ends_only_its_session(link, content: dict[str, ConfigRecord]) -> None:
    house = House(link, link.listener)
    (invitation,) = house.turn()
    house.grid.replies.append(Message(RecordDict(content), reply_to=invitation))
    house.turn()
    assert types(house.turn(60.0)) == ["train.session"], "it is invited again, and not written to"


@pytest.mark.parametrize("how", ["a session that lived", "sessions alone"])
def test_other_nodes_are_invited_again(link, how: str) -> None:
    house = House(link, link.listener, message_server=how != "sessions alone")
    (invitation,) = house.turn()
    house.session_ends(invitation, reached=how == "a session that lived")
    assert house.turn(1.0) == []
    assert types(house.turn(5.0)) == ["train.session"]


def test_node_whose_client_left_is_invited_later(link) -> None:
    house = House(link, link.listener)
    (invitation,) = house.turn()
    house.session_ends(invitation, reached=True, left=True)
    house.turn()
    assert house.turn(58.0) == []
    assert types(house.turn(2.0)) == ["train.session"]


def test_client_that_leaves_while_it_connects_is_not_written_to(link) -> None:
    house = House(link, link.listener, run="run-1")
    (invitation,) = house.turn()
    house.session_ends(invitation, reached=False, says_who=False, left=True)
    assert house.turn() == house.turn(58.0) == house.events == [], "it is not written to"
    assert types(house.turn(2.0)) == ["train.session"]


def test_site_that_refuses_is_named_and_invited_once_it_may(link) -> None:
    house = House(link, link.listener)
    (invitation,) = house.turn()
    house.refuses(invitation, 7200.0)
    assert house.turn() == []
    assert house.audits == [("policy", "north", "site.toml, line 2 (hours.open): not now (said by node 1)")]
    assert house.turn(7190.0) == []
    assert not house.grid_loop.too_few_left()
    (invitation,) = house.turn(20.0)
    house.refuses(invitation, math.inf)
    house.turn()
    assert house.grid_loop.too_few_left(), "for good"
    assert house.grid_loop.explained() == "site.toml, line 2 (hours.open): not now"


@pytest.mark.parametrize("opens", [False, True])
def test_unresponsive_node_is_invited_with_growing_intervals(link, opens: bool) -> None:
    house, pauses = House(link, link.listener), []
    for _ in range(3):
        before = house.now
        while not (sent := house.turn()):
            pass
        pauses.append(house.now - before)
        if opens:
            session = link.open(Session(invited(sent[0].content), link.identity(), link.terms()))
            session.send(Joined(0.0, "me", True, (Held("a", 1),)))
            link.event(Joined)
        house.now += SHORT_S  # its process may take as long to start as a session must last to have lived
        house.fails(sent[0], 2)
        house.turn()
        if opens:
            link.event(Lost)
    assert len(set(pauses[1:])) == (1 if opens else 2), pauses
    assert pauses == sorted(pauses)


def test_every_node_gets_messages_at_once_without_sessions(link) -> None:
    house = House(link)
    house.grid.nodes = [1, 2]
    assert types(house.turn()) == [packets.TYPE] * 2


def test_errors_are_matched_to_their_requests(link) -> None:
    house = House(link)
    house.grid.nodes = [7, 8]
    first, second = house.turn()
    house.answers(first)
    house.turn(0.05)
    house.fails(second, 5)
    house.turn(0.05)
    assert not any(isinstance(each, Lost) for each in house.events), "the other one failed"
    (again,) = house.turn(2.0)
    assert again.metadata.dst_node_id == second.metadata.dst_node_id


def test_vanished_node_is_lost(link) -> None:
    house = House(link)
    (packet,) = house.turn()
    house.answers(packet)
    house.turn(0.05)
    house.grid.nodes = []
    house.turn()
    assert isinstance(house.events[-1], Lost)


def test_site_that_refuses_packet_is_asked_once_it_may(link) -> None:
    house = House(link)
    (asked,) = house.turn()
    house.refuses(asked, 7200.0)
    assert house.turn(PACKETS_POLL_S) == []
    assert house.audits == [("policy", "north", "site.toml, line 2 (hours.open): not now (said by node 1)")]
    assert house.turn(7190.0) == []
    (asked,) = house.turn(20.0)
    assert not house.grid_loop.too_few_left()
    house.refuses(asked, math.inf)
    house.turn(PACKETS_POLL_S)
    assert house.grid_loop.too_few_left() == "every client failed"


MISSING = "<class 'ModuleNotFoundError'>:<'No module named pandas'>"
FAILED = ("app failed", "node 1", "ModuleNotFoundError: No module named pandas")


def test_failing_app_is_audited_once_until_it_fails_otherwise(link) -> None:
    house = House(link, link.listener)
    for reason in (MISSING, MISSING, "<class 'BadTask'>:<'client north: task: saw none'>"):
        while not (sent := house.turn()):
            pass
        house.fails(sent[0], 2, reason)
        house.turn()
    assert house.audits == [FAILED, ("app failed", "node 1", "client north: task: saw none")]


@pytest.mark.parametrize("over", ["an answer", "a session", "a refusal", "gone"])
def test_end_of_failure_of_app_is_audited(link, over: str) -> None:
    house = House(link, link.listener)
    (invitation,) = house.turn()
    house.fails(invitation, 2, MISSING)
    house.turn()
    (invitation,) = house.turn(5.0)
    if over == "an answer":
        house.session_ends(invitation, reached=True)
    elif over == "a refusal":
        house.refuses(invitation, 7200.0)
    elif over == "gone":
        house.grid.nodes = []
    else:
        session = link.open(Session(invited(invitation.content), link.identity(), link.terms()))
        session.send(Joined(0.0, "me", True, (Held("a", 1),)))
        link.event(Joined)
    house.turn()
    kinds = [each[:2] for each in house.audits]
    assert kinds[:2] == [FAILED[:2], ("app fails no longer", "node 1")]


def test_forgotten_or_refused_packet_is_sent_again(link) -> None:
    house = House(link)
    house.turn()
    assert house.turn(OVERHEAD_S + SLACK_S - 1.0) == []
    house.turn(2.0)
    assert types(house.turn(2.0)) == [packets.TYPE]
    house.turn(OVERHEAD_S + SLACK_S + 1.0)
    house.grid.takes = False
    assert len(house.turn(4.0)) == 1
    house.grid.takes = True
    assert len(house.turn(60.0)) == 1


def test_nodes_are_polled_every_second_and_packets_more_often(link) -> None:
    house = House(link)
    house.turn()
    before = house.grid.asked
    for _ in range(100):
        house.turn(0.05)
    assert 4 <= house.grid.asked - before <= 6
    assert house.grid_loop._pause_s() == PACKETS_POLL_S < POLL_S


def test_unwritable_packet_of_client_does_not_end_run(link) -> None:
    house = House(link)
    (asked,) = house.turn()
    house.answers(asked)
    house.turn(0.05)
    names = tuple((chunk, f"{chunk:05d}" + "x" * 40) for chunk in range(30_000))
    house.message_server.send(Work(house.who.client, 1, 0, 1, tuple(range(30_000)), names, 0, 60.0))
    assert house.turn() == []
    assert isinstance(house.events[-1], Lost)
    assert types(house.turn(5.0)) == [packets.TYPE], "it is asked again who it is"


class PlayedListener:
    """Counts the invitations that are good."""

    def __init__(self) -> None:
        self.good: set[bytes] = set()

    def invite(self) -> Invitation:
        token = os.urandom(8)
        self.good.add(token)
        return Invitation("localhost:1", b"", token, "run-1")

    def serves(self, invitation: Invitation) -> bool:
        return True

    def opened(self, invitation: Invitation) -> bool:
        return False

    def cancel(self, invitation: Invitation, reason: str) -> bool:
        self.good.discard(invitation.token)
        return False


def test_refused_invitation_is_dropped_and_next_one_waits(link) -> None:
    listener = PlayedListener()
    house = House(link, listener, message_server=False)
    house.grid.takes = False
    for _ in range(50):
        house.turn()
        assert not listener.good
    assert 3 <= len(house.grid.sent) <= 6, "less and less often"
    house.grid.takes = True
    house.turn(60.0)
    assert len(listener.good) == 1


def test_invitation_forgotten_by_flower_is_void(link) -> None:
    listener = PlayedListener()
    house = House(link, listener)
    house.turn()
    (first,) = listener.good
    house.turn(house.grid_loop._ways.ttl_s + SLACK_S)
    assert first not in listener.good


def test_client_exit_report_is_one_log_line(link, caplog) -> None:
    house = House(link, PlayedListener(), run="run-1")
    (invitation,) = house.turn()
    about = {"ended": "left\nERROR the disk is full \x1b[31m", "device": "d\n" + "x" * 999, "reached": False}
    with caplog.at_level(logging.INFO):
        house.grid.replies.append(Message(RecordDict({RECORD: ConfigRecord(about)}), reply_to=invitation))
        house.turn()
    said = [each.getMessage() for each in caplog.records]
    assert said[0] == "a session ended: left ERROR the disk is full [31m"
    assert all(each.isprintable() and len(each) < 300 for each in said)


def test_failed_message_is_one_log_line(link, caplog) -> None:
    house = House(link)
    (packet,) = house.turn()
    house.fails(packet, 2, "KeyError: 'x'")
    house.turn()
    warned = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert [each.partition(" failed: ")[0] for each in warned] == ["node 1"]


def test_unreachable_grid_is_logged_once(link) -> None:
    house, told, heard = House(link), [], threading.Event()

    def stopped() -> list[int]:
        raise RuntimeError("the run was stopped")

    house.grid.get_node_ids = stopped
    house.grid_loop.start(lambda why: (told.append(why), heard.set()))
    assert heard.wait(60.0)
    house.grid_loop.stop()
    assert told == ["Flower's grid: RuntimeError: the run was stopped"]


def test_failed_and_silent_nodes_are_explained(link) -> None:
    house = House(link, link.listener)
    house.grid.nodes = [1, 2]
    failing, _ = house.turn()
    assert (
        house.grid_loop.explained() == "2 connected and did not answer: a SuperNode serves one run at a time"
    )
    assert not house.grid_loop.explained(lacks_clients=False)
    house.fails(failing, 0)
    house.turn()
    assert house.grid_loop.explained(lacks_clients=False) == "node 1 failed: gone"
    assert house.grid_loop.explained() == (
        "node 1 failed: gone; 1 connected and did not answer: a SuperNode serves one run at a time"
    )


LASTING = "<class 'fedgc.errors.BadTask'>:<'client north: task: chunks() raised OSError: no data'>"
PASSING = "<class 'fedgc.errors.EdgeFailed'>:<'client north: the disk is full'>"


@pytest.mark.parametrize(("reason", "ends"), [(LASTING, True), (PASSING, False), ("gone", False)])
def test_run_ends_once_every_app_fails_for_good(link, reason: str, ends: bool) -> None:
    house = House(link, link.listener)
    house.grid.nodes = [1, 2]
    first, second = house.turn()
    house.fails(first, 2, LASTING)
    house.turn()
    assert not house.grid_loop.too_few_left()
    house.fails(second, 2, reason)
    house.turn()
    assert house.grid_loop.too_few_left() == ("every client failed" if ends else "")
    assert house.grid_loop.explained().startswith("client north: task: chunks() raised OSError: no data")


def test_clients_with_one_failure_are_named_together(link) -> None:
    house = House(link, link.listener)
    house.grid.nodes = [1, 2, 3]
    turned = house.turn()
    for node, name in zip(turned, ("north", "south", "west"), strict=True):
        house.fails(
            node,
            2,
            LASTING.replace("north", name).replace("no data", "full" if name == "west" else "no data"),
        )
    house.turn()
    assert house.grid_loop.explained() == (
        "clients north, south: task: chunks() raised OSError: no data; "
        "client west: task: chunks() raised OSError: full"
    )


@pytest.mark.parametrize(("least", "fleet", "ends"), [(2, 2, True), (1, 2, False), (2, 3, False)])
def test_client_that_fails_for_good_ends_run_that_needs_it(link, caplog, least, fleet, ends) -> None:
    house = House(link, link.listener, least=least, fleet=fleet)
    house.grid.nodes = [1, 2]
    first, second = house.turn()
    assert not house.grid_loop.too_few_left()
    house.fails(first, 2, LASTING)
    house.turn()
    assert not house.grid_loop.too_few_left(), "the other has not answered"
    assert "no data: it does not take part (its app failed with Flower's code 2)" in caplog.text
    house.fails(second, 2, PASSING)
    house.turn()
    said = f"1 of {fleet} clients are left, needed min-clients, {least}" if ends else ""
    assert house.grid_loop.too_few_left() == said
    assert "the disk is full: it is asked again (its app failed with Flower's code 2)" in caplog.text


@pytest.mark.parametrize(
    "reason",
    [
        "<class 'ValueError'>:<\"No train function registered with name 'session'\">",
        "<class 'KeyError'>:<'fitins.parameters'>",
        "<class 'ValueError'>:<'Invalid message type: train.session'>",
    ],
)
def test_clientapp_other_than_that_of_fedgc_is_named_as_cause(link, caplog, reason) -> None:
    house = House(link, link.listener, least=1, fleet=1)
    (node,) = house.turn()
    house.fails(node, 2, reason)
    house.turn()
    assert 'saw another ClientApp, needed that of fedgc, or client.app = "stock": ' in caplog.text
    assert "it does not take part" in caplog.text
    assert house.grid_loop.too_few_left(), "no retry mends it"


def test_run_that_has_begun_outlives_client_that_fails(link) -> None:
    house = House(link, link.listener, least=2, fleet=2)
    house.grid.nodes = [1, 2]
    first, second = house.turn()
    house.fails(first, 2, LASTING)
    house.fails(second, 2, PASSING)
    house.turn()
    assert house.grid_loop.too_few_left()
    house.grid_loop.has_begun = lambda: True
    assert not house.grid_loop.too_few_left()


def test_run_goes_on_while_node_that_failed_has_session(link) -> None:
    house = House(link, link.listener)
    (sent,) = house.turn()
    house.fails(sent, 2, LASTING)
    house.turn()
    assert house.grid_loop.too_few_left()
    (sent,) = house.turn(10.0)
    session = link.open(Session(invited(sent.content), link.identity(), link.terms()))
    session.send(JOINED)
    link.event(Joined)
    assert not house.grid_loop.too_few_left()


def test_node_with_open_session_needs_no_explanation(link) -> None:
    house = House(link, link.listener)
    (sent,) = house.turn()
    session = link.open(Session(invited(sent.content), link.identity(), link.terms()))
    session.send(JOINED)
    link.event(Joined)
    assert house.grid_loop.explained() == ""


class Ending:
    """A link whose processes have ended: others take their places, or none does any more."""

    def __init__(self, listener) -> None:
        self.listener = listener
        self.ends: list[EdgeFailed] = []
        self.has_ended = False

    def __getattr__(self, name: str):
        return getattr(self.listener, name)

    def serves(self, invitation: Invitation) -> bool:
        return not self.has_ended and self.listener.serves(invitation)

    def invite(self) -> Invitation:
        if self.ends:
            raise self.ends.pop(0)
        return self.listener.invite()


def test_node_is_invited_once_listener_serves_again(link) -> None:
    house = House(link, listener := Ending(link.listener), message_server=False)
    house.grid.nodes = [1, 2]
    listener.ends = [NotNow("none serves at the moment")]
    assert house.turn() == []
    assert types(house.turn()) == ["train.session"] * 2


def test_listener_that_is_over_ends_run_with_its_own_reason(link) -> None:
    house = House(link, listener := Ending(link.listener), message_server=False)
    listener.ends = [EdgeFailed("links.receivers: all 2 have ended")]
    reasons: list[str] = []
    house.grid_loop._keep(reasons.append)
    assert reasons == ["links.receivers: all 2 have ended"]


def test_node_whose_receiver_has_ended_is_invited_again(link) -> None:
    house = House(link, listener := Ending(link.listener), run="run-1")
    (invitation,) = house.turn()
    listener.has_ended = True
    house.session_ends(invitation, reached=False)
    assert house.turn() == []
    assert types(house.turn(2 * SHORT_S)) == ["train.session"]
    assert house.events == []
