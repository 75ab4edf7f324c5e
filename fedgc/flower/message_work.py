"""A client's side of the message link: carries out one packet in a process of its own.

Finished work is loaded from the client cache and written back before the answer is sent. If the answer is
lost, the next packet finds the work done. A client that is asked to leave answers at once with what it has;
the server's next packet asks for its vector.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from fedgc.errors import BadMessage, FedgcError
from fedgc.flower.departure import Departure
from fedgc.flower.masked_client import MaskedClient, failure
from fedgc.flower.site_policy import SitePolicy
from fedgc.guards import guarded
from fedgc.large_vectors import Readable
from fedgc.links.byte_counts import Amounts
from fedgc.links.frames import StreamId, encode
from fedgc.links.message.packets import AnswerLine, Packet, Shelved
from fedgc.links.pieces import Packed, shortened, signed_offer_of
from fedgc.messages import (
    Announced,
    Closing,
    Failed,
    Fetched,
    Joined,
    Leaving,
    Progress,
    Repair,
    Report,
    Reveal,
    Scored,
    ToClient,
    ToMember,
    Work,
)
from fedgc.training import Answer, CacheFiles, Engine


def encoded(answer: Answer, stream: StreamId) -> Readable | None:
    """Return an answer's vector by the codec of its command; None if it has none."""
    if answer.encoded is not None or answer.vector is None:
        return answer.encoded
    return shortened(answer.vector, answer.command.wire, stream, answer.command.client)


def bytes_of(vector: Readable) -> int:
    """Return the size of a vector on the wire, without its checksum."""
    return vector.size * vector.dtype.itemsize


class MessageWork:
    """The work of one packet; `lines` and `codewords` form the answer."""

    def __init__(  # noqa: PLR0913  what a client has
        self,
        engine: Engine,
        cache: CacheFiles,
        client: str,
        clock: Callable[[], float],
        site: MaskedClient | None = None,
        *,
        departure: Departure | None = None,
        policy: SitePolicy | None = None,
    ) -> None:
        """`site` is given for masked work; `departure` tells whether the client is asked to leave."""
        self._policy = policy or SitePolicy()
        self._departure = departure or Departure()
        self._site = site
        self._engine = engine
        self._cache = cache
        self._client = client
        self._clock = clock
        self.lines: Final[list[AnswerLine]] = []
        self.codewords: Final[dict[StreamId, Packed]] = {}

    def run(self, packet: Packet) -> None:
        """Carry out the packet until its work is done or its lease is over."""
        until = self._clock() + packet.lease_s
        if packet.model is not None:
            self._cache.put_model(*packet.model)
            self._policy.moved(Amounts(down_bytes=packet.model[1].nbytes))
        if not packet.commands:
            if (layout := self._engine.layout) is not None:
                self.lines.append(Announced(0.0, self._client, layout))
            if (closes_s := self._policy.closes_s()) is not None:
                self.lines.append(Closing(0.0, self._client, closes_s, self._policy.windows()))
            self._say(Joined(0.0, self._client, False, self._engine.holds(), self._engine.kept()))
            if self._site is not None:
                self.lines.append(self._site.enrolled(self._client, packet.run))
        elif all(map(self._handled, packet.commands)):
            self._work(until)
        self._put_away()
        if (left_s := self._departure.left_s) is not None:
            self.lines.append(Leaving(0.0, self._client, left_s))
        self.lines.extend(Shelved(version, digest) for version, digest in self._cache.models().items())
        lines = sum(len(encode(each)) for each in (*packet.commands, *self.lines))
        self._policy.moved(Amounts(control_bytes=lines))
        self._policy.settle(max((command.round for command in packet.commands), default=0))

    def _handled(self, command: ToClient) -> bool:
        """Carry out a command; return whether to continue with the next."""
        if isinstance(command, Work):
            self._cache.drop_models_after(command.version)
            model = self._cache.model(command.version)
            if model is None:  # the answer lists the models here; the next packet brings it
                return False
            before = self._cache.model(command.before) if command.common_steps else None
            if before is not None:
                self._engine.load(command.before, before)
            self._engine.load(command.version, model)
        self._guarded(command, lambda: self._handle(command))
        return True

    def _guarded(self, command: ToClient | Report, act: Callable[[], None]) -> None:
        """Act for a command, or for a report; report what goes wrong as `Failed`."""
        try:
            with guarded(f"a command {type(command).__name__}"):
                act()
        except FedgcError as error:
            failed_event = self._site.failed if self._site else failure
            self.lines.append(failed_event(command, error))

    def _handle(self, command: ToClient) -> None:
        if self._site is not None and isinstance(command, ToMember | Reveal | Repair):
            self._handle_masked(self._site, command)
            return
        match command:
            case Work():
                self._engine.handle(command)
            case Reveal() | Repair():
                self._answer(command)
            case _:
                raise BadMessage(f"{type(command).__name__}: needed work, or a codeword to send")

    def _answer(self, command: Reveal | Repair) -> None:
        if (answer := self._engine.answer(command)) is not None:
            self._deliver(answer)

    def _deliver(self, answer: Answer) -> None:
        command = answer.command
        stream = StreamId("codeword", command.round, command.attempt)
        if self._site is not None:
            masked = self._site.masked_answer(answer, self._engine.start)
            self._policy.send(command.round, bytes_of(masked), masked)
            self._offer(stream, masked[:])
            return
        vector = encoded(answer, stream)
        if vector is not None:
            self._policy.send(command.round, bytes_of(vector))
        if answer.report is not None:
            self.lines.append(self._policy.filtered(answer.report))
        if vector is not None:
            self._offer(stream, np.ascontiguousarray(vector[:]))

    def _handle_masked(self, site: MaskedClient, command: ToMember | Reveal | Repair) -> None:
        if isinstance(command, Reveal | Repair):
            site.must_be_masked(command)
            self._answer(command)
            return
        answer = site.handle(command, self._engine.start)
        if answer is not None:
            self.lines.append(answer)

    def _work(self, until: float) -> None:
        while not (self._engine.idle or self._departure.asked) and self._clock() < until:
            event = self._engine.step()
            if isinstance(event, Answer):
                self._guarded(event.command, partial(self._deliver, event))
            elif isinstance(event, Scored | Fetched):
                if self._site is None:  # under masks no figure of a single site leaves it
                    self.lines.append(self._policy.filtered(event))
            elif isinstance(event, Report):
                self._guarded(event, partial(self._report, event))
            elif event is not None:
                self._say(event)

    def _report(self, report: Report) -> None:
        """Say how far work is, once the site's log has the steps that the measure of the gate reveals."""
        self._policy.measured(report.round)
        self._say(report)

    def _say(self, event: Joined | Progress | Report | Failed) -> None:
        self.lines.append(self._redacted(event))

    def _redacted(self, event: Joined | Progress | Report | Failed) -> Any:  # noqa: ANN401  of the same kind
        """Return an event without the details that a masked client keeps."""
        masked = self._site
        return self._policy.filtered(event) if masked is None else masked.redacted(event, self._engine.start)

    def _offer(self, stream: StreamId, vector: Packed) -> None:
        self.codewords[stream] = vector
        self._policy.moved(Amounts(up_bytes=vector.nbytes))
        self.lines.append(signed_offer_of(stream, vector))

    def _put_away(self) -> None:
        """Write the work to the client cache; drop the reports of chunks that could not be written."""
        events = self._engine.keep()
        failed = [each for each in events if isinstance(each, Failed)]
        lost = {chunk for each in failed for chunk in each.chunks}
        self.lines[:] = [
            each for each in self.lines if not (isinstance(each, Progress) and each.chunk in lost)
        ]
        if self._site is None:  # masked clients do not report their progress
            for each in events:
                if isinstance(each, Report):
                    self._guarded(each, partial(self._report, each))
        self.lines.extend(map(self._redacted, failed))
