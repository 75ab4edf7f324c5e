"""A device at work: its engine's steps and its session's commands, turn by turn, in one thread.

Between two micro-batches the session is asked for a command, so none waits for longer than one step; an
engine that rests is woken by the next command. What goes wrong here is told as `Failed`; the device lives.

May import: errors, messages, train, session, institution.
"""

from collections.abc import Callable
from typing import Final

from fedgc.codes import Wire
from fedgc.errors import BadMessage, FedgcError
from fedgc.flower.institution import Institution, Said, failure
from fedgc.flower.pieces import Numbers
from fedgc.flower.session import Session
from fedgc.flower.wire import StreamId
from fedgc.messages import (
    Close,
    Continue,
    Fold,
    Joined,
    Progress,
    Refuse,
    Repair,
    Reveal,
    Skip,
    Take,
    ToDevice,
    ToMember,
    Work,
)
from fedgc.train import Engine

IDLE_S: Final = 0.5  # between looks at the lease while there is nothing to do

Rest = Callable[[float], None]
Beat = Callable[[int], None]  # with the chunks finished so far


def _unheard(_: int) -> None:
    """Nobody listens."""


class Worker:
    """One device's engine, and the session that drives it."""

    def __init__(
        self,
        make_engine: Callable[[Rest], Engine],
        beat: Beat = _unheard,
        institution: Institution | None = None,
    ) -> None:
        """`make_engine` takes the function by which the engine rests; `beat` hears every turn.

        Masked work has an institution.
        """
        self._institution = institution
        self._session: Session | None = None
        self.engine: Final = make_engine(self._rest)
        if institution is None:  # nothing is folded under masks
            self.engine.ask_for_room()
        self._beat = beat
        self._finished = 0  # chunks, in this session
        self._open_round = False

    def serve(self, session: Session, device: str) -> str:
        """Work until the session ends; return why it ended."""
        self._session = session
        self._say(session, Joined(0.0, device, True, self.engine.holds(), self.engine.kept()))
        if self._institution is not None:
            session.say(self._institution.enrolled(device, session.run))
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
        session.say(
            event if self._institution is None else self._institution.discreet(event, self.engine.chunks)
        )

    def _carry_out(self, session: Session, command: ToDevice) -> None:
        try:
            if self._institution is not None and isinstance(command, ToMember | Reveal | Repair):
                self._obey_masked(session, self._institution, command)
            else:
                self._obey(session, command)
        except FedgcError as error:
            discreet = self._institution.failed if self._institution else failure
            session.say(discreet(command, error))
            if self._institution is not None and self._institution.broken:
                session.end("the vault could not be written")

    def _obey(self, session: Session, command: ToDevice) -> None:
        match command:
            case Work():
                self._open_round = True
                model = session.fresh_model(command.version)
                if model is not None:
                    self.engine.load(command.version, model)
                self.engine.handle(command)
            case Skip() | Take() | Fold() | Continue():
                self.engine.handle(command)
            case Reveal() | Repair():
                self._send(session, command)
            case Close():
                self._close(session, command)
            case Refuse():
                pass  # the session has withdrawn what was refused; the listener has counted it
            case _:
                raise BadMessage(f"{type(command).__name__}: this device does no masked work")

    def _send(self, session: Session, command: Reveal | Repair) -> None:
        vector: Numbers | None
        if command.mix is not None:
            vector = self.engine.codeword(command.mix)
        elif isinstance(command, Reveal) and command.kind == "local":
            report, vector = self.engine.update(command)
            session.say(report)
        else:
            raise BadMessage(f"{type(command).__name__}: this device does no masked work")
        if vector is not None:
            session.offer(command.round, command.attempt, vector, Wire(command.wire))

    def _obey_masked(
        self, session: Session, institution: Institution, command: ToMember | Reveal | Repair
    ) -> None:
        if isinstance(command, Reveal | Repair):
            stream = StreamId("codeword", command.round, command.attempt)
            session.offer_packed(stream, institution.revealed(command, self.engine))
            return
        answer = institution.heard(command, self.engine.start)
        if answer is not None:
            session.say(answer)

    def _close(self, session: Session, command: Close) -> None:
        self._open_round = False
        self.engine.handle(command)
        if command.outcome == "stopped":
            session.end("the run was stopped")
