"""A device's end of the messages link: one letter, carried out by a process that lives no longer than that.

What it had finished before lies on its shelf; what it finishes now lies there before the answer leaves. So a
lost answer costs its words, not the work: the next letter finds it done.

May import: messages, errors, train, and this room's letter, pieces.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from fedgc.codes import Wire
from fedgc.errors import BadMessage, FedgcError
from fedgc.flower.institution import Institution, failure
from fedgc.flower.letter import Letter, Said, Shelved
from fedgc.flower.pieces import Numbers, Packed, offer_of, shortened
from fedgc.flower.wire import StreamId
from fedgc.messages import Failed, Joined, Pressed, Progress, Repair, Report, Reveal, ToDevice, ToMember, Work
from fedgc.train import Engine, Lasting


class Errand:
    """One letter's work; `lines` and `codewords` are what there is to answer."""

    def __init__(
        self,
        engine: Engine,
        shelf: Lasting,
        device: str,
        clock: Callable[[], float],
        institution: Institution | None = None,
    ) -> None:
        """Masked work has an institution."""
        self._institution = institution
        self._engine = engine
        self._shelf = shelf
        self._device = device
        self._clock = clock
        self.lines: Final[list[Said]] = []
        self.codewords: Final[dict[StreamId, Packed]] = {}

    def run(self, letter: Letter) -> None:
        """Do what the letter asks for, until that is done or its lease is over."""
        until = self._clock() + letter.lease_s
        if letter.model is not None:
            self._shelf.put_model(*letter.model)
        if not letter.commands:
            self._say(Joined(0.0, self._device, False, self._engine.holds(), self._engine.kept()))
            if self._institution is not None:
                self.lines.append(self._institution.enrolled(self._device, letter.run))
        elif all(map(self._obeyed, letter.commands)):
            self._work(until)
            self._send_along(letter.commands)
        self._put_away()
        self.lines.extend(Shelved(version, digest) for version, digest in self._shelf.models().items())

    def _obeyed(self, command: ToDevice) -> bool:
        """Carry a command out; return whether the next may be."""
        if isinstance(command, Work):
            model = self._shelf.model(command.version)
            if model is None:  # the answer says what is here, and the next letter brings it
                return False
            before = self._shelf.model(command.version - 1) if command.common_steps else None
            if before is not None:
                self._engine.load(command.version - 1, before)
            self._engine.load(command.version, model)
        try:
            if self._institution is not None and isinstance(command, ToMember | Reveal | Repair):
                self._obey_masked(self._institution, command)
            else:
                self._obey(command)
        except FedgcError as error:
            discreet = self._institution.failed if self._institution else failure
            self.lines.append(discreet(command, error))
        return True

    def _obey(self, command: ToDevice) -> None:
        match command:
            case Work():
                self._engine.handle(command)
            case Reveal() | Repair():
                self._answer(command)
            case _:
                raise BadMessage(f"{type(command).__name__}: needed work, or a codeword to send")

    def _answer(self, command: Reveal | Repair) -> None:
        vector: Numbers | None
        if command.mix is not None:
            vector = self._engine.codeword(command.mix)
        elif isinstance(command, Reveal) and command.kind == "local":
            report, vector = self._engine.update(command)
            self.lines.append(report)
        else:
            raise BadMessage(f"{type(command).__name__}: saw no mix, and no local work")
        if vector is not None:
            self._enclose(StreamId("codeword", command.round, command.attempt), vector, Wire(command.wire))

    def _enclose(self, stream: StreamId, vector: Numbers, form: Wire) -> None:
        self._offer(stream, shortened(vector, form, stream, self._device))

    def _obey_masked(self, institution: Institution, command: ToMember | Reveal | Repair) -> None:
        if isinstance(command, Reveal | Repair):
            stream = StreamId("codeword", command.round, command.attempt)
            self._offer(stream, institution.revealed(command, self._engine))
            return
        answer = institution.heard(command, self._engine.start)
        if answer is not None:
            self.lines.append(answer)

    def _send_along(self, commands: tuple[ToDevice, ...]) -> None:
        """Send the codeword whose coefficients came with the work, where all that they mix is finished."""
        for work in commands:
            if isinstance(work, Work) and work.coefficients is not None and self._institution is None:
                with suppress(FedgcError):  # it is asked for, if it is wanted
                    codeword = self._engine.codeword(work.coefficients)
                    self._enclose(StreamId("codeword", work.round), codeword, Wire(work.wire))

    def _work(self, until: float) -> None:
        while not self._engine.idle and self._clock() < until:
            event = self._engine.step()
            if event is not None:
                self._say(event)
        standing = self._engine.standing()
        if standing is not None and self._institution is None:  # how far one is by itself, no sum tells
            self._say(standing)

    def _say(self, event: Joined | Progress | Report | Failed | Pressed) -> None:
        self.lines.append(self._told(event))

    def _told(self, event: Joined | Progress | Report | Failed | Pressed) -> Any:  # noqa: ANN401  of the same kind
        """Return an event as it may leave this device."""
        masked = self._institution
        return event if masked is None else masked.discreet(event, self._engine.chunks)

    def _offer(self, stream: StreamId, vector: Packed) -> None:
        self.codewords[stream] = vector
        self.lines.append(offer_of(stream, vector, signed=True))

    def _put_away(self) -> None:
        """Write down what there is; what the disk does not take cannot be had later, and is not told."""
        lost = [self._told(each) for each in self._engine.keep()]
        gone = {chunk for each in lost for chunk in each.chunks}
        told = [each for each in self.lines if not (isinstance(each, Progress) and each.chunk in gone)]
        self.lines[:] = [*told, *lost]
