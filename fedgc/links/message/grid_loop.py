"""The thread that calls Flower's Grid: it invites nodes to sessions and carries packets.

A call of the grid takes tens of milliseconds, so it has its own thread. About once a second it asks which
nodes are connected, which is also how it notices a stopped run, and checks whether sessions have ended. It
polls for answers more often only while a packet is out. Flower's own `send_and_receive` would sleep for
seconds.

A node has one session at a time: its reply, good or bad, ends the one that its message began. Then the node
is free: it is invited again, after a pause that grows while its sessions never begin or end early, or while
the SuperLink refuses invitations. Where Flower gives up a message itself, or the node vanishes, its session
may go on: until the next one of this node begins, or until the node has been gone for `GONE_S`, as that of a
client whose key is revoked. Where the settings allow it, a node whose session could not connect gets packets
from then on; the reply that ended its session already holds what the first packet would ask. If the receiver
that it was to connect to has ended, it is invited again instead. Errors come from the SuperLink itself, so a
reply is recognized by the message it replies to.
"""

import math
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from logging import INFO, WARNING, Logger
from typing import Final

from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid

from fedgc import errors
from fedgc.errors import EdgeFailed, FedgcError, NotAllowed, NotNow, printable, words_of
from fedgc.guards import guarded
from fedgc.history import APP_FAILED, APP_FAILS_NOT, BY_SITE
from fedgc.links.frames import Invitation
from fedgc.links.links import SessionLink
from fedgc.links.message.invitation import RECORD, invite
from fedgc.links.message.packets import ACTION, TYPE, read_answer, write_packet
from fedgc.links.message.server import MessageServer
from fedgc.links.refusals import Audit, no_audit

POLL_S: Final = 1.0  # between polls of the connected nodes
PACKETS_POLL_S: Final = 0.25  # a client's SuperNode polls every half second
SLACK_S: Final = 30.0  # after the TTL, until an answer that Flower has not given up counts as lost
JOIN_S: Final = 1.0  # a call of the grid may hang for longer: the thread is a daemon
SHORT_S: Final = 10.0  # a session that ended sooner counts as failed
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
GONE_S: Final = 300.0  # a SuperNode's heartbeats come every 30 s: 10 more, after those that Flower awaits
REFUSED_S: Final = 600.0  # until a node is invited again whose site does not allow the run
NAMED: Final = 3  # nodes whose failure the end of a run repeats
LONGEST_FAILURE: Final = 600  # characters of an app's failure: a traceback's last line and the path of a log
NAMED_CLIENT: Final = re.compile(r"client (\S+): (.+)", re.DOTALL)
RAISED: Final = re.compile(r"<class '(?:\w+\.)*(\w+)'>:<'?(.*?)'?>$", re.DOTALL)  # how Flower writes it
SIMULATED: Final = re.compile(
    r"ClientAppException occurred\. Message: (.*?)\s*'>$", re.DOTALL
)  # after Ray's text
NOT_LOADED: Final = (1, 7)  # Flower's codes of an app that cannot be imported
GIVEN_UP: Final = (3, 4, 5)  # and of a message that has expired or whose node is away: no node has answered
OTHER_APP: Final = (  # errors of apps other than fedgc's; the last two are of a client_fn
    "No train function registered",
    "fitins.parameters",
    "Invalid message type: train.",
)
NEEDED: Final = 'saw another ClientApp, needed that of fedgc, or client.app = "stock"'
ANSWERED: Final = "its Flower message is answered"
FOLLOWED: Final = "its SuperNode has begun another"
GONE: Final = f"its SuperNode has been away for {GONE_S / 60:g} minutes, or its key is revoked"
OURS: Final = frozenset(vars(errors))  # names of errors whose message says all
AT_ONCE: Final = ("TaskFailed", "Unusable", "BadSetting", "BadTask", "BadPlacement")  # no retry mends these


@dataclass(slots=True)
class _NodeState:
    message: str = ""  # the id of the message in flight, if any
    ends: float = 0.0  # when that message expires
    invitation: Invitation | None = None
    earlier: list[Invitation] = field(default_factory=list)  # whose sessions may go on
    invited: float = 0.0
    pause_s: float = FIRST_PAUSE_S
    next: float = 0.0
    heard: bool = False  # it has answered, or opened a session


@dataclass(frozen=True, slots=True)
class Ways:
    """The links in use: sessions, packets, or packets where a session does not connect."""

    listener: SessionLink | None
    message_server: MessageServer | None
    ttl_s: float  # of an invitation
    least: int = 1  # clients that a run needs
    fleet: int | None = None  # clients that there are in all, if that is known


def alike(failures: Iterable[str]) -> list[str]:
    """Return failures with one entry for all clients that failed for the same reason.

    >>> alike(["client a: no disk", "client b: no disk", "client c: left"])
    ['clients a, b: no disk', 'client c: left']
    """
    clients: dict[str, list[str]] = {}
    for each in failures:
        found = NAMED_CLIENT.fullmatch(each)
        clients.setdefault(found[2] if found else each, []).extend([found[1]] if found else [])
    said = []
    for reason, named in clients.items():
        names = list(dict.fromkeys(named))
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        who = f"client{'s' if len(names) > 1 else ''} {', '.join(names[:NAMED])}{more}: " if names else ""
        said.append(f"{who}{reason}")
    return said


def raised_in(reason: str) -> tuple[str, str]:
    """Return the kind of the exception in an error of Flower, if it names one, and its text.

    >>> raised_in("<class 'builtins.ValueError'>:<'saw 1 > 0'>"), raised_in("no such app")
    (('ValueError', 'saw 1 > 0'), ('', 'no such app'))
    """
    if simulated := SIMULATED.search(reason):
        text = simulated[1]
        line = re.escape(text.split("\n")[0])
        kind = re.search(rf"^(?:\w+\.)*(\w+): {line}$", reason, re.MULTILINE)
        return kind[1] if kind else "Exception", text
    raised = RAISED.search(reason)
    return (raised[1], raised[2]) if raised else ("", reason)


class GridLoop:
    """Start and stop the thread; `ended` is called with the reason why the grid can no longer be used."""

    def __init__(
        self, grid: Grid, ways: Ways, clock: Callable[[], float], log: Logger, audit: Audit = no_audit
    ) -> None:
        """`audit` gets what the policies of sites refuse, and whose app fails."""
        self._grid = grid
        self._ways = ways
        self._clock = clock
        self._log = log
        self._audit = audit
        self._nodes: dict[int, _NodeState] = {}
        self._gone: dict[int, tuple[float, list[Invitation]]] = {}  # since when, and what sessions go on
        self._failures: dict[int, str] = {}  # the last failure of each node's app
        self._audited: dict[int, str] = {}  # the failure of each node's app that is in the audit
        self._hopeless: set[int] = set()  # nodes whose app fails in the same way each time
        self.has_begun: Callable[[], bool] = lambda: False  # whether the first round has
        self._looked = -POLL_S
        self._over = threading.Event()
        self._wake = ways.message_server.wanted if ways.message_server else threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, ended: Callable[[str], None]) -> None:
        """Begin to invite nodes."""
        self._thread = threading.Thread(target=self._keep, args=(ended,), name="fedgc-gridloop", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop inviting nodes."""
        self._over.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(JOIN_S)

    def explained(self, *, lacks_clients: bool = True) -> str:
        """Return why connected nodes take no part: their app failed, or never answered if clients lack."""
        failures = alike(reason for _, reason in sorted(self._failures.items()))
        reasons = failures[:NAMED]
        reasons += [f"{len(failures) - NAMED} more failed"] if len(failures) > NAMED else []
        silent = sum(map(self._is_silent, list(self._nodes.values())))
        if silent and lacks_clients:
            reasons.append(f"{silent} connected and did not answer: a SuperNode serves one run at a time")
        return "; ".join(reasons)

    def too_few_left(self) -> str:
        """Return why too few clients are left for a run; empty if there may be enough.

        The app of every connected node failed, in a way that no retry mends. Or so many of a fleet of known
        size failed that the run cannot begin, and all others have answered, so that every failure is named.
        """
        nodes, least, fleet = self._nodes, self._ways.least, self._ways.fleet
        sessions = {node for node, each in nodes.items() if self._has_session(each)}
        failed = nodes.keys() & self._hopeless - sessions
        if failed == nodes.keys() and len(nodes) >= max(1, least):
            return "every client failed"
        if not failed or fleet is None or self.has_begun() or any(map(self._is_silent, nodes.values())):
            return ""
        left = max(fleet, len(nodes)) - len(failed)
        return f"{left} of {fleet} clients are left, needed min-clients, {least}" if left < least else ""

    def _is_silent(self, node_state: _NodeState) -> bool:
        """Whether a node has answered nothing so far, and opened no session."""
        if node_state.heard or not node_state.message:
            return False
        return not self._has_session(node_state)

    def _has_session(self, node_state: _NodeState) -> bool:
        listener, invitation = self._ways.listener, node_state.invitation
        return listener is not None and invitation is not None and listener.opened(invitation)

    # ---- the thread

    def _keep(self, ended: Callable[[str], None]) -> None:
        while not self._over.is_set():
            try:
                self._turn()
                if why := self.too_few_left():
                    ended(why)
                    return
            except EdgeFailed as error:  # the listener
                if not self._over.is_set():
                    ended(str(error))
                return
            except Exception as error:  # the edge to Flower: a stopped run, a SuperLink that is gone
                if not self._over.is_set():
                    ended(f"Flower's grid: {words_of(error)}")
                return
            self._wake.wait(self._pause_s())

    def _pause_s(self) -> float:
        if self._ways.message_server is not None and self._ways.message_server.waits():
            return PACKETS_POLL_S
        return max(0.0, self._looked + POLL_S - self._clock())

    def _turn(self) -> None:
        now = self._clock()
        looks = now >= self._looked + POLL_S
        if looks:
            self._looked = now
            self._look(now)
        self._pull(packets_alone=not looks)
        self._push_packets(now)

    def _look(self, now: float) -> None:
        """Poll the connected nodes; invite those that are free."""
        nodes = set(self._grid.get_node_ids())
        for gone in self._nodes.keys() - nodes:
            self._vanished(gone, now)
        for node in nodes - self._nodes.keys():
            _, earlier = self._gone.pop(node, (now, []))
            self._nodes[node] = _NodeState(earlier=earlier, heard=bool(earlier))
            if self._ways.message_server is not None and self._ways.listener is None:
                self._ways.message_server.open(node)
        for node in [each for each in self._audited if self._has_session(self._nodes[each])]:
            self._fails_not(node, "its session is open")
        self._end_sessions(now)
        due = [node for node in nodes if self._due(node, now)]
        if due and self._ways.listener is not None:
            self._invite(due, self._ways.listener, now)

    def _vanished(self, node: int, now: float) -> None:
        node_state = self._nodes.pop(node)
        self._give_up(node_state)
        self._fails_not(node, "it is not connected")
        if node_state.earlier:
            self._gone[node] = now, node_state.earlier
        if self._ways.message_server is not None:
            self._ways.message_server.gone(node)

    def _end_sessions(self, now: float) -> None:
        """End the sessions of nodes that have begun another one, or are gone."""
        for node_state in self._nodes.values():
            if node_state.earlier and self._has_session(node_state):
                self._cancel_earlier(node_state, FOLLOWED)
        for node, (since, earlier) in list(self._gone.items()):
            if now >= since + GONE_S:
                del self._gone[node]
                self._cancel(earlier, GONE)

    def _written_to(self, node: int) -> bool:
        return self._ways.message_server is not None and self._ways.message_server.serves(node)

    def _due(self, node: int, now: float) -> bool:
        node_state = self._nodes[node]
        return not node_state.message and now >= node_state.next and not self._written_to(node)

    def _invite(self, nodes: list[int], listener: SessionLink, now: float) -> None:
        messages: list[Message] = []
        with suppress(NotNow):  # the others are due at the next look
            for node in nodes:
                invitation, node_state = listener.invite(), self._nodes[node]
                node_state.invitation, node_state.invited = invitation, now
                node_state.ends = now + self._ways.ttl_s + SLACK_S
                messages.append(invite(invitation, node, self._ways.ttl_s))
        pushed = self._grid.push_messages(messages) if messages else ()
        for node, message in zip(nodes[: len(messages)], pushed, strict=True):
            node_state = self._nodes[node]
            node_state.message = message or ""
            if not node_state.message:
                self._give_up(node_state)
                self._pause(node_state, now)

    def _push_packets(self, now: float) -> None:
        if self._ways.message_server is None:
            return
        for node, packet, ttl_s in self._ways.message_server.packets():
            message = Message(
                content=write_packet(packet), dst_node_id=node, message_type=TYPE, ttl=ttl_s, group_id=ACTION
            )
            pushed = list(self._grid.push_messages([message]))
            node_state = self._nodes[node]
            node_state.message, node_state.ends = (pushed[0] or "") if pushed else "", now + ttl_s + SLACK_S
            if not node_state.message:
                self._ways.message_server.failed(node, "the SuperLink did not take it")

    # ---- replies

    def _pull(self, *, packets_alone: bool) -> None:
        out = {
            node_state.message: node
            for node, node_state in self._nodes.items()
            if node_state.message and (not packets_alone or self._written_to(node))
        }
        if not out:
            return
        for reply in self._grid.pull_messages(list(out)):
            if (node := out.pop(reply.metadata.reply_to_message_id, None)) is not None:
                self._take_in(node, reply)
        self._expire(out)

    def _take_in(self, node: int, reply: Message) -> None:
        """Handle a reply; one that raises an unexpected error costs its node a pause, and nothing else."""
        try:
            with guarded("a reply", f"node {node}"):
                self._replied(node, reply)
        except FedgcError as error:
            self._failures[node] = reason = printable(error)
            self._pause(self._nodes[node], self._clock())
            if self._ways.message_server is not None:
                self._ways.message_server.failed(node, reason)

    def _expire(self, out: Mapping[str, int]) -> None:
        """Give up a message that Flower has forgotten."""
        now = self._clock()
        for node in out.values():
            node_state = self._nodes[node]
            if now >= node_state.ends:
                node_state.message = ""
                self._give_up(node_state)
                if self._ways.message_server is not None:
                    self._ways.message_server.failed(node, "no answer within its time to live")

    def _forget(self, node_state: _NodeState) -> bool:
        """Cancel a node's invitation, and end its sessions; return whether this one had opened one."""
        self._cancel_earlier(node_state, ANSWERED)
        invitation, node_state.invitation = node_state.invitation, None
        return invitation is not None and self._cancel([invitation], ANSWERED)

    def _give_up(self, node_state: _NodeState) -> bool:
        """Cancel a node's invitation unless it has opened a session, which goes on; return whether it has."""
        opened, invitation = self._has_session(node_state), node_state.invitation
        node_state.invitation = None
        if invitation is not None and opened:
            node_state.earlier.append(invitation)
        elif invitation is not None:
            self._cancel([invitation], ANSWERED)
        return opened

    def _cancel_earlier(self, node_state: _NodeState, reason: str) -> None:
        earlier, node_state.earlier = node_state.earlier, []
        self._cancel(earlier, reason)

    def _cancel(self, invitations: Iterable[Invitation], reason: str) -> bool:
        """Cancel invitations, and end their sessions; return whether one of them had opened one."""
        listener = self._ways.listener
        opened = [listener.cancel(each, reason) for each in invitations] if listener is not None else []
        return any(opened)

    def _pause(self, node_state: _NodeState, now: float, *, lived: bool = False) -> None:
        """Invite a node again after a pause, which grows until one of its sessions succeeds."""
        node_state.pause_s = FIRST_PAUSE_S if lived else min(2 * node_state.pause_s, LONGEST_PAUSE_S)
        node_state.next = now + node_state.pause_s

    def _replied(self, node: int, reply: Message) -> None:
        node_state, message_server = self._nodes[node], self._ways.message_server
        node_state.message, node_state.heard = "", True
        if message_server is None or not message_server.serves(node):
            self._session_over(node, node_state, reply)
        elif reply.has_error():
            self._failed(node, reply)
            message_server.failed(node)
        elif (about := reply.content.config_records.get(RECORD, ConfigRecord())).get("refused") is True:
            message_server.failed(node, again_s=self._packet_refused(node, about))
        else:
            self._answered(node)
            self._hear(message_server, node, reply)

    def _packet_refused(self, node: int, about: ConfigRecord) -> float:
        """Note a node whose site refuses a packet; return when it may get the next one."""
        client, again_s = printable(about.get("client", f"node {node}")), about.get("again_s")
        reason = printable(about.get("ended", "saw a reply of another form"), LONGEST_FAILURE)
        self._refused(node, client, reason, lasts=again_s is None)
        return again_s if isinstance(again_s, float) and 0 <= again_s < math.inf else REFUSED_S

    def _session_over(self, node: int, node_state: _NodeState, reply: Message) -> None:
        now, invitation = self._clock(), node_state.invitation
        serving = self._serving(invitation)
        is_given_up = reply.has_error() and reply.error.code in GIVEN_UP
        opened = self._give_up(node_state) if is_given_up else self._forget(node_state)
        # A ClientApp that refuses may have started slowly, on a busy client.
        lived = opened and now - node_state.invited >= SHORT_S
        self._pause(node_state, now, lived=lived)
        if reply.has_error():
            self._failed(node, reply)
            return
        self._answered(node)
        about = reply.content.config_records.get(RECORD, ConfigRecord())
        ended, client = about.get("ended", "saw a reply of another form"), about.get("client", f"node {node}")
        if about.get("refused") is True:
            self._refused(
                node, printable(client), printable(ended, LONGEST_FAILURE), lasts="again_s" not in about
            )
        else:
            self._log.log(INFO, "a session ended: %s", printable(ended))
        again_s = about.get("again_s")
        if has_left := about.get("left") is True:  # its SuperNode may be about to end
            node_state.next = now + LONGEST_PAUSE_S
        if isinstance(again_s, float) and again_s < math.inf:  # when the hours of its site begin
            node_state.next = max(node_state.next, now + again_s)
        message_server = self._ways.message_server
        unreached = about.get("reached") is False and not has_left  # who leaves may not have tried for long
        if unreached and serving is not None and message_server is not None:
            self._log.log(WARNING, "client %s goes on over Flower messages alone", printable(client))
            message_server.open(node, serving.token)
            self._hear(message_server, node, reply)

    def _answered(self, node: int) -> None:
        """Note that a node's app does not fail."""
        self._hopeless.discard(node)
        self._fails_not(node, "it has answered")

    def _fails_not(self, node: int, why: str) -> None:
        """Note the end of a failure that is in the audit, if there is one."""
        if self._audited.pop(node, None) is not None:
            self._audit(APP_FAILS_NOT, f"node {node}", why)

    def _serving(self, invitation: Invitation | None) -> Invitation | None:
        """Return an invitation with which a client could connect; None if what made it has ended."""
        if invitation is None or self._ways.listener is None or not self._ways.listener.serves(invitation):
            return None
        return invitation

    def _refused(self, node: int, client: str, reason: str, *, lasts: bool) -> None:
        """Note a node whose site does not allow the run, or not now."""
        self._fails_not(node, "its site refuses the run")
        self._failures[node] = reason
        if lasts:
            self._hopeless.add(node)
            self._nodes[node].next = max(self._nodes[node].next, self._clock() + REFUSED_S)
        self._log.log(WARNING, "refused by its site: %s", reason)
        said_by = "" if client == f"node {node}" else f" (said by node {node})"  # which may name any client
        self._audit(BY_SITE, client, f"{reason}{said_by}")

    def _failed(self, node: int, reply: Message) -> None:
        """Note the failure of a node's app."""
        code = reply.error.code
        kind, text = raised_in(reply.error.reason or "")
        shown = text if not kind or kind in OURS else f"{kind}: {text}"
        is_other = any(each in shown for each in OTHER_APP)
        fault = printable(f"{NEEDED}: {shown}" if is_other else shown, LONGEST_FAILURE)
        reason = fault if fault.startswith("client ") else f"node {node} failed: {fault}"
        self._failures[node] = reason
        if kind == NotAllowed.__name__:
            self._refused(node, f"node {node}", reason, lasts=not self._written_to(node))
            return
        if self._audited.get(node) != fault:  # an app that fails again and again is one entry
            self._audited[node] = fault
            self._audit(APP_FAILED, f"node {node}", fault)
        if code in NOT_LOADED or kind in AT_ONCE or is_other:
            self._hopeless.add(node)
        follows = "it does not take part" if node in self._hopeless else "it is asked again"
        self._log.log(WARNING, "%s: %s (its app failed with Flower's code %d)", reason, follows, code)

    def _hear(self, message_server: MessageServer, node: int, reply: Message) -> None:
        message_server.answered(node, lambda packet: read_answer(reply.content, packet, self._clock()))
