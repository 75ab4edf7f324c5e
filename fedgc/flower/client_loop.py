"""The main loop of a client with a session: alternates engine steps and commands, in one thread.

The session is polled between two local steps, so a command waits for at most one step; it also interrupts the
wait of `Pace`. Errors are reported as `Failed`, and the client continues.

A client that is asked to leave finishes its present step, reports what it has and says `Leaving`. It answers
commands until the round with its work is closed, or its grace time is over, and says goodbye.
"""

import time
from collections.abc import Callable
from typing import Final

from fedgc.errors import BadMessage, FedgcError, NotAllowed
from fedgc.flower.departure import Departure
from fedgc.flower.masked_client import ClientEvent, MaskedClient, failure
from fedgc.flower.message_work import bytes_of, encoded
from fedgc.flower.site_policy import SitePolicy
from fedgc.guards import guarded
from fedgc.links.frames import StreamId
from fedgc.links.session.client import Session
from fedgc.messages import (
    LARGEST_PACKET,
    LONGEST_REASON,
    Announced,
    Close,
    Closing,
    Continue,
    Failed,
    Fetched,
    Initialize,
    Joined,
    Leaving,
    Progress,
    Refuse,
    Repair,
    Report,
    Reveal,
    Scored,
    Skip,
    Take,
    ToClient,
    ToMember,
    Validate,
    Work,
)
from fedgc.training import Answer, Engine

START_S: Final = 0.05  # between looks at a training script that starts
IDLE_S: Final = 0.25  # between checks of the lease, and of a request to leave, while idle
CROSSING_S: Final = (
    1.0  # after a skipped round, for the next one to continue the work of a client that leaves
)
STAYS_S: Final = 7 * 86_400.0  # that a client stays whose script has left: no exchange is forced for it
LEFT: Final = "it was asked to leave"
ENDS_BYTES: Final = 4 * LARGEST_PACKET  # of the lines by which an exchange ends, at most
OF_WORK: Final = (Skip, Take, Continue, Reveal, Repair)  # commands about work that was given before

Wait = Callable[[float], None]
Beat = Callable[[int], None]  # takes the number of chunks finished so far


def _ignore(_: int) -> None:
    """Ignore heartbeats."""


class ClientLoop:
    """Runs a client's engine by the commands of a session."""

    def __init__(
        self,
        make_engine: Callable[[Wait], Engine],
        beat: Beat = _ignore,
        site: MaskedClient | None = None,
        *,
        departure: Departure | None = None,
        policy: SitePolicy | None = None,
        brings_model: bool = False,
    ) -> None:
        """Make the loop.

        Args:
            make_engine: Makes the engine, given the function by which it waits.
            beat: Called in every turn of the loop.
            site: The site's masking state, for masked work.
            departure: Tells whether the client is asked to leave.
            policy: What the client's site allows.
            brings_model: A client may be asked for the first model, as the run has a script.
        """
        self._brings_model = brings_model
        self._policy = policy or SitePolicy()
        self.refused: NotAllowed | None = None  # why the session was ended by the policy
        self._departure = departure or Departure()
        self._leaves = self._has_said_so = self._has_said_left = False
        self._closed_at = 0.0  # when the last round was closed
        self._site = site
        self._session: Session | None = None
        self.engine: Final = make_engine(self._rest)
        self._beat = beat
        self._finished = 0  # chunks, in this session
        self._has_work = False  # in this session
        self._open_round = False
        self._has_sent = False  # the update of the open round
        self._has_worked = False  # the first model may leave openly only before any training

    def serve(self, session: Session, client: str) -> str:
        """Work until the session ends; return why it ended."""
        self._session = session
        joined = self._has_work = False
        while not session.ended:
            self._beat(self._finished)
            if self._departure.asked:
                self._leave(session, client, joined=joined)
            else:
                joined = joined or self._join(session, client)
            idle = self.engine.idle
            if idle and joined and self.engine.has_left and not (self._has_said_left or self._leaves):
                self._has_said_left = True  # no round waits for it; it stays to hand in what it has
                session.send(Leaving(0.0, client, STAYS_S))
            command = session.receive((IDLE_S if joined else START_S) if idle else 0.0)
            if command is not None:
                self._carry_out(session, command)
            elif not idle and not session.ended:
                self._step(session)
            if session.lease_over and not self._open_round:
                session.end("the lease is over")
            self._keep_to_bytes(session, client)
        return session.ended

    def prepare(self) -> None:
        """Wait until the engine knows what it trains, or the client is asked to leave."""
        try:
            while self.engine.layout is None and not self._departure.asked:
                self._beat(self._finished)
                time.sleep(START_S)
        except BaseException:
            self.engine.close()
            raise

    def _join(self, session: Session, client: str) -> bool:
        """Join the run, once the engine knows what it trains; return whether that is so."""
        layout = self.engine.layout
        if layout is None:
            return False
        session.expect(layout.size, layout.buffer_size)
        session.send(Announced(0.0, client, layout))
        if (closes_s := self._policy.closes_s()) is not None:
            session.send(Closing(0.0, client, closes_s, self._policy.windows()))
        self._say(session, Joined(0.0, client, True, self.engine.holds(), self.engine.kept()))
        if self._site is not None:
            session.send(self._site.enrolled(client, session.run))
        return True

    def _leave(self, session: Session, client: str, *, joined: bool) -> None:
        """Hand in what is there, then end the session."""
        left_s = self._departure.left_s
        if not joined or left_s is None or left_s <= 0:
            session.end(LEFT)
            return
        if not self._leaves:
            self._leaves = True
            self.engine.leave()
        if not self.engine.idle:
            return  # the present step, and its report
        if not self._has_said_so:
            self._has_said_so = True
            session.send(Leaving(0.0, client, left_s))
        waits = self._open_round or time.monotonic() < self._closed_at + CROSSING_S
        if not (self.engine.has_work and waits):
            session.end(LEFT)

    def _keep_to_bytes(self, session: Session, client: str) -> None:
        """End the session if it has moved more bytes than the site allows; an exchange may end."""
        self._policy.moved(session.accounts.settle())
        round_ = session.accounts.round
        try:
            self._policy.keep_to_bytes(round_, ENDS_BYTES if self._has_sent else 0)
        except NotAllowed as error:
            self._end_refused(session, Failed(0.0, client, round_, str(error)[:LONGEST_REASON]), error)

    def _end_refused(self, session: Session, failed: Failed, error: NotAllowed) -> None:
        self.refused = error
        session.send(failed)
        session.end(str(error))

    def _rest(self, seconds: float) -> None:
        if self._session is not None:
            self._session.rest(seconds)

    def _step(self, session: Session) -> None:
        event = self.engine.step()
        if isinstance(event, Answer):
            self._guarded(session, event.command, lambda: self._deliver(session, event))
        elif isinstance(event, Report):
            if not (self._leaves and self._site):  # how far a site was interrupted is its own business
                self._guarded(session, event, lambda: self._report(session, event))
        elif event is not None:
            self._finished += isinstance(event, Progress)
            self._say(session, event)

    def _report(self, session: Session, report: Report) -> None:
        """Say how far work is, once the site's log has the steps that the measure of the gate reveals."""
        self._policy.measured(report.round)
        self._say(session, report)

    def _say(self, session: Session, event: ClientEvent | Fetched | Scored) -> None:
        if self._site is None:
            session.send(self._policy.filtered(event))
        elif not isinstance(event, Scored | Fetched):  # under masks no figure of a single site leaves it
            session.send(self._site.redacted(event, self.engine.start))

    def _carry_out(self, session: Session, command: ToClient) -> None:
        """Carry out a command; one about the work of an earlier session crossed this one's `Joined`."""
        self._has_work = self._has_work or isinstance(command, Work)
        if isinstance(command, OF_WORK) and not self._has_work:
            return
        if self._site is not None and isinstance(command, ToMember | Reveal | Repair):
            site = self._site
            self._guarded(session, command, lambda: self._handle_masked(session, site, command))
        else:
            self._guarded(session, command, lambda: self._handle(session, command))

    def _guarded(self, session: Session, command: ToClient | Report, act: Callable[[], None]) -> None:
        """Act for a command, or for a report; report what goes wrong as `Failed`."""
        try:
            with guarded(f"a command {type(command).__name__}"):
                act()
        except NotAllowed as error:
            failed_event = self._site.failed if self._site else failure
            self._end_refused(session, failed_event(command, error), error)
        except FedgcError as error:
            failed_event = self._site.failed if self._site else failure
            session.send(failed_event(command, error))
            if self._site is not None and self._site.broken:
                session.end("the vault could not be written")

    def _handle(self, session: Session, command: ToClient) -> None:
        self._has_worked = self._has_worked or isinstance(command, Work | Validate | Skip | Take | Continue)
        match command:
            case Work() | Validate():
                self._open_round = self._open_round or isinstance(command, Work)
                model = session.fresh_model(command.version)
                if model is not None:
                    self.engine.load(command.version, model, session.changed, is_finite=True)
                self._order(command)
            case Skip() | Take() | Continue():
                self._open_round = self._open_round or isinstance(command, Continue)
                self._order(command)
            case Reveal() | Repair() | Initialize():
                self._send(session, command)
            case Close():
                self._close(session, command)
            case Refuse():  # the session has withdrawn a refused vector, and the listener has counted it
                if command.round == 0:  # the client's model has another layout
                    session.end(f"refused: {command.reason}")
            case _:
                raise BadMessage(f"{type(command).__name__}: this client does no masked work")

    def _order(self, command: Work | Validate | Skip | Take | Continue) -> None:
        """Let the engine work; one that leaves takes no new work, but that of a skipped round goes on."""
        if self._leaves and isinstance(command, Validate):
            return
        if isinstance(command, Work | Continue):
            self._has_sent = False
            self._policy.reread()
        self.engine.handle(command)
        if self._leaves:
            self.engine.leave()

    def _send(self, session: Session, command: Reveal | Repair | Initialize) -> None:
        if isinstance(command, Initialize):
            self._send_first_model(session, command)
            return
        if isinstance(command, Reveal) and command.kind == "masked":
            raise BadMessage(f"{type(command).__name__}: this client does no masked work")
        if (answer := self.engine.answer(command)) is not None:
            self._deliver(session, answer)

    def _send_first_model(self, session: Session, command: Initialize) -> None:
        if not self._brings_model:
            raise BadMessage("saw a request for the first model, which the server has: the run has no script")
        if self._has_worked or command.round:
            raise BadMessage(
                f"saw a request for the first model in round {command.round}, needed it in round 0 "
                "and before any work"
            )
        vector = self.engine.initial()
        self._policy.send_first_model(bytes_of(vector))
        session.offer(0, command.attempt, vector)

    def _deliver(self, session: Session, answer: Answer) -> None:
        """Send what the server asked for."""
        command = answer.command
        stream = StreamId("codeword", command.round, command.attempt)
        self._policy.moved(session.accounts.settle())
        self._has_sent = True
        if self._site is not None:
            masked = self._site.masked_answer(answer, self.engine.start)
            self._policy.send(command.round, bytes_of(masked), masked)
            session.offer_packed(stream, masked)
            return
        vector = encoded(answer, stream)
        if vector is not None:
            self._policy.send(command.round, bytes_of(vector))
        if answer.report is not None:
            session.send(self._policy.filtered(answer.report))
        if vector is not None:
            session.offer_packed(stream, vector)

    def settle(self, session: Session, round_: int) -> None:
        """Enter what the session has carried by the end of a round into the log of the site's policy."""
        self._policy.moved(session.accounts.settle())
        self._policy.settle(round_)

    def _handle_masked(
        self, session: Session, site: MaskedClient, command: ToMember | Reveal | Repair
    ) -> None:
        if isinstance(command, Reveal | Repair):
            site.must_be_masked(command)
            if (found := self.engine.answer(command)) is not None:
                self._deliver(session, found)
            return
        answer = site.handle(command, self.engine.start)
        if answer is not None:
            session.send(answer)

    def _close(self, session: Session, command: Close) -> None:
        self._open_round, self._closed_at, self._has_sent = False, time.monotonic(), False
        if command.outcome != "skipped":
            self.settle(session, command.round)
        self.engine.handle(command)
        if command.outcome == "stopped" and not command.frees:  # else the server says goodbye itself
            session.end("the run was stopped")
