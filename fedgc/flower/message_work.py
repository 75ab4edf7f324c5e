"""A client's end of the messages link: one packet, carried out by a process that lives no longer than that.

What it had finished before lies on its cache; what it finishes now lies there before the answer leaves. So a
lost answer costs its words, not the work: the next packet finds it done.
"""

from collections.abc import Callable
from typing import Any, Final

from fedgc.errors import BadMessage, FedgcError
from fedgc.flower.masked_client import MaskedClient, failure
from fedgc.links.frames import StreamId
from fedgc.links.message.packets import Packet, Said, Shelved
from fedgc.links.pieces import Numbers, Packed, offer_of, shortened
from fedgc.messages import Failed, Joined, Progress, Repair, Report, Reveal, ToClient, ToMember, Work
from fedgc.training import CacheFiles, Engine


class MessageWork:
    """One packet's work; `lines` and `codewords` are what there is to answer."""

    def __init__(
        self,
        engine: Engine,
        cache: CacheFiles,
        client: str,
        clock: Callable[[], float],
        site: MaskedClient | None = None,
    ) -> None:
        """Masked work has a site."""
        self._site = site
        self._engine = engine
        self._cache = cache
        self._client = client
        self._clock = clock
        self.lines: Final[list[Said]] = []
        self.codewords: Final[dict[StreamId, Packed]] = {}

    def run(self, packet: Packet) -> None:
        """Do what the packet asks for, until that is done or its lease is over."""
        until = self._clock() + packet.lease_s
        if packet.model is not None:
            self._cache.put_model(*packet.model)
        if not packet.commands:
            self._say(Joined(0.0, self._client, False, self._engine.holds(), self._engine.kept()))
            if self._site is not None:
                self.lines.append(self._site.enrolled(self._client, packet.run))
        elif all(map(self._obeyed, packet.commands)):
            self._work(until)
        self._put_away()
        self.lines.extend(Shelved(version, digest) for version, digest in self._cache.models().items())

    def _obeyed(self, command: ToClient) -> bool:
        """Carry a command out; return whether the next may be."""
        if isinstance(command, Work):
            model = self._cache.model(command.version)
            if model is None:  # the answer says what is here, and the next packet brings it
                return False
            before = self._cache.model(command.version - 1) if command.common_steps else None
            if before is not None:
                self._engine.load(command.version - 1, before)
            self._engine.load(command.version, model)
        try:
            if self._site is not None and isinstance(command, ToMember | Reveal | Repair):
                self._obey_masked(self._site, command)
            else:
                self._obey(command)
        except FedgcError as error:
            discreet = self._site.failed if self._site else failure
            self.lines.append(discreet(command, error))
        return True

    def _obey(self, command: ToClient) -> None:
        match command:
            case Work():
                self._engine.handle(command)
            case Reveal() | Repair():
                self._answer(command)
            case _:
                raise BadMessage(f"{type(command).__name__}: needed work, or a codeword to send")

    def _answer(self, command: Reveal | Repair) -> None:
        report, vector = self._engine.answer(command)
        if report is not None:
            self.lines.append(report)
        if vector is not None:
            self._enclose(StreamId("codeword", command.round, command.attempt), vector, command.wire)

    def _enclose(self, stream: StreamId, vector: Numbers, wire: str) -> None:
        self._offer(stream, shortened(vector, wire, stream, self._client))

    def _obey_masked(self, site: MaskedClient, command: ToMember | Reveal | Repair) -> None:
        if isinstance(command, Reveal | Repair):
            stream = StreamId("codeword", command.round, command.attempt)
            self._offer(stream, site.revealed(command, self._engine))
            return
        answer = site.heard(command, self._engine.start)
        if answer is not None:
            self.lines.append(answer)

    def _work(self, until: float) -> None:
        while not self._engine.idle and self._clock() < until:
            event = self._engine.step()
            if event is not None:
                self._say(event)

    def _say(self, event: Joined | Progress | Report | Failed) -> None:
        self.lines.append(self._told(event))

    def _told(self, event: Joined | Progress | Report | Failed) -> Any:  # noqa: ANN401  of the same kind
        """Return an event as it may leave this client."""
        masked = self._site
        return event if masked is None else masked.discreet(event, self._engine.start)

    def _offer(self, stream: StreamId, vector: Packed) -> None:
        self.codewords[stream] = vector
        self.lines.append(offer_of(stream, vector, signed=True))

    def _put_away(self) -> None:
        """Write the work for the next process, and withdraw the reports of what could not be written."""
        said = self._engine.keep()
        failed = [each for each in said if isinstance(each, Failed)]
        lost = {chunk for each in failed for chunk in each.chunks}
        self.lines[:] = [
            each for each in self.lines if not (isinstance(each, Progress) and each.chunk in lost)
        ]
        if self._site is None:  # under masks, no client's own progress is told
            self.lines.extend(each for each in said if isinstance(each, Report))
        self.lines.extend(map(self._told, failed))
