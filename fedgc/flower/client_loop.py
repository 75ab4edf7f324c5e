"""A client at work: its engine's steps and its session's commands, turn by turn, in one thread.

Between two micro-batches the session is asked for a command, so none waits for longer than one step; an
engine that rests is woken by the next command. What goes wrong here is told as `Failed`; the client lives.
"""

from collections.abc import Callable
from typing import Final

from fedgc.errors import BadMessage, FedgcError
from fedgc.flower.masked_client import MaskedClient, Said, failure
from fedgc.links.frames import StreamId
from fedgc.links.session.client import Session
from fedgc.messages import (
    Close,
    Continue,
    Joined,
    Progress,
    Refuse,
    Repair,
    Reveal,
    Skip,
    Take,
    ToClient,
    ToMember,
    Work,
)
from fedgc.training import Engine

IDLE_S: Final = 0.5  # between looks at the lease while there is nothing to do

Rest = Callable[[float], None]
Beat = Callable[[int], None]  # with the chunks finished so far


def _unheard(_: int) -> None:
    """Nobody listens."""


class ClientLoop:
    """One client's engine, and the session that drives it."""

    def __init__(
        self,
        make_engine: Callable[[Rest], Engine],
        beat: Beat = _unheard,
        site: MaskedClient | None = None,
    ) -> None:
        """`make_engine` takes the function by which the engine rests; `beat` hears every turn.

        Masked work has a site.
        """
        self._site = site
        self._session: Session | None = None
        self.engine: Final = make_engine(self._rest)
        self._beat = beat
        self._finished = 0  # chunks, in this session
        self._open_round = False

    def serve(self, session: Session, client: str) -> str:
        """Work until the session ends; return why it ended."""
        self._session = session
        self._say(session, Joined(0.0, client, True, self.engine.holds(), self.engine.kept()))
        if self._site is not None:
            session.say(self._site.enrolled(client, session.run))
        while not session.ended:
            self._beat(self._finished)
            idle = self.engine.idle
            command = session.receive(IDLE_S if idle else 0.0)
            if command is not None:
                self._carry_out(session, command)
            elif not idle and not session.ended:
                self._step(session)
            if session.lease_over and not self._open_round:
                session.end("the lease is over")
        return session.ended

    def _rest(self, seconds: float) -> None:
        if self._session is not None:
            self._session.rest(seconds)

    def _step(self, session: Session) -> None:
        event = self.engine.step()
        if event is not None:
            self._finished += isinstance(event, Progress)
            self._say(session, event)

    def _say(self, session: Session, event: Said) -> None:
        session.say(event if self._site is None else self._site.discreet(event, self.engine.start))

    def _carry_out(self, session: Session, command: ToClient) -> None:
        try:
            if self._site is not None and isinstance(command, ToMember | Reveal | Repair):
                self._obey_masked(session, self._site, command)
            else:
                self._obey(session, command)
        except FedgcError as error:
            discreet = self._site.failed if self._site else failure
            session.say(discreet(command, error))
            if self._site is not None and self._site.broken:
                session.end("the vault could not be written")

    def _obey(self, session: Session, command: ToClient) -> None:
        match command:
            case Work():
                self._open_round = True
                model = session.fresh_model(command.version)
                if model is not None:
                    self.engine.load(command.version, model)
                self.engine.handle(command)
            case Skip() | Take() | Continue():
                self.engine.handle(command)
            case Reveal() | Repair():
                self._send(session, command)
            case Close():
                self._close(session, command)
            case Refuse():
                pass  # the session has withdrawn what was refused; the listener has counted it
            case _:
                raise BadMessage(f"{type(command).__name__}: this client does no masked work")

    def _send(self, session: Session, command: Reveal | Repair) -> None:
        if isinstance(command, Reveal) and command.kind == "masked":
            raise BadMessage(f"{type(command).__name__}: this client does no masked work")
        report, vector = self.engine.answer(command)
        if report is not None:
            session.say(report)
        if vector is not None:
            session.offer(command.round, command.attempt, vector, command.wire)

    def _obey_masked(self, session: Session, site: MaskedClient, command: ToMember | Reveal | Repair) -> None:
        if isinstance(command, Reveal | Repair):
            stream = StreamId("codeword", command.round, command.attempt)
            session.offer_packed(stream, site.revealed(command, self.engine))
            return
        answer = site.heard(command, self.engine.start)
        if answer is not None:
            session.say(answer)

    def _close(self, session: Session, command: Close) -> None:
        self._open_round = False
        self.engine.handle(command)
        if command.outcome == "stopped":
            session.end("the run was stopped")
