"""The clients of a run: which are present, what each has announced, and which are leaving."""

import math
from collections.abc import Container, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

from fedgc.config import RunConfig
from fedgc.history import ClientRow, RoundRow
from fedgc.messages import SUMMED, Failed, Joined
from fedgc.round.machine import Round
from fedgc.round.masked.key_agreement import KeyAgreement
from fedgc.round.plan import Fleet, Plan
from fedgc.run.chunk_table import MOST_PRIVATE, Holdings
from fedgc.run.client_notes import LOST
from fedgc.run.departures import Departures
from fedgc.run.outputs import RunState

RETRY_AFTER: Final = 20  # rounds


class OpenSteps:
    """Owns the steps of every client that are in no sum yet: each is counted or discarded in a later row.

    A round settles those of its own clients. Another client keeps its steps until it is gone, or until there
    is another model; then a row of its own says that they were discarded.
    """

    def __init__(self) -> None:
        self.of: Mapping[str, int] = {}

    def closed(self, row: RoundRow, over: Round, present: Container[str]) -> RoundRow:
        """Return the row of a closed round with the clients outside its plan that have lost steps."""
        others = {client: steps for client, steps in self.of.items() if client not in over.roster.w}
        lost = {
            client: steps
            for client, steps in others.items()
            if client not in present or over.outcome in SUMMED
        }
        kept = {client: steps for client, steps in others.items() if client not in lost}
        own = zip(over.plan.clients, over.statistics.open, strict=True)
        self.of = kept | {client: steps for client, steps in own if steps}
        rows = (
            ClientRow(client, finished=steps, failure="" if client in present else LOST)
            for client, steps in lost.items()
        )
        return replace(row, clients=(*row.clients, *rows))


class Clients:
    """Owns what is known of the clients, and makes of it the fleet that a plan is made for.

    `holdings` are their chunks. In a masked run `keys` says which clients are members.
    """

    def __init__(
        self, config: RunConfig, size: int, buffers: int, keys: KeyAgreement | None, resume: RunState | None
    ) -> None:
        """The model's vector has `size` numbers, of which the last are `buffers`."""
        most_private = MOST_PRIVATE if config.work == "coded" else math.inf
        known, next_chunk = (resume.chunks, resume.next_chunk) if resume else ((), 0)
        self.present: Final[dict[str, Joined]] = {}
        self.holdings: Final = Holdings(known, next_chunk, most_private=most_private)
        self.departures: Final = Departures()
        self.open_steps: Final = OpenSteps()
        self._size: Final = size
        self._buffers: Final = buffers
        self._keys: Final = keys
        self._leaves_out: Final = config.work == "local" and config.placement == "private"
        self._fails: dict[str, dict[int, int]] = {}  # chunks that a client could not load, and in which round
        self._fleet: Fleet | None = None  # until one of the clients, or the members have changed

    @property
    def staying(self) -> AbstractSet[str]:
        """The present clients that are not leaving."""
        return self.present.keys() - self.departures.leaving.keys()

    @property
    def able(self) -> list[str]:
        """The clients that stay, have chunks to work on and, in a masked run, keys."""
        leaving, keys = self.departures.leaving, self._keys
        able = [each for each, held in self.holdings.present.items() if held and each not in leaving]
        return [client for client in able if keys is None or client in keys.enrolled]

    @property
    def fleet(self) -> Fleet:
        """The clients to plan for, sorted by identity: the same one until something has changed.

        The order of joining differs after every resume; with a stable order, clients are offered the chunks
        that they have already finished.
        """
        if self._fleet is None:
            deaf = any(not joined.live for joined in self.present.values())
            there = self.present.keys() if self._keys is None else set(self._keys.members)
            held, fails = self.holdings.present, self._fails
            holds = {
                client: held[client].difference(fails.get(client, ()))
                for client in sorted(self.staying)
                if client in there
            }
            self._fleet = Fleet(holds, self.holdings.chunks, self._size, deaf, self._buffers)
        return self._fleet

    def joined(self, event: Joined) -> str:
        """Enter a client and its chunks; return why some of them are refused.

        A plan leaves out chunks that differ from what others announce.
        """
        self.present[event.client] = event
        self._fails.pop(event.client, None)
        self.changed()
        return self.holdings.announced(event.client, event.holds).refused

    def lost(self, client: str) -> None:
        """Forget a client; its chunks stay known."""
        self.present.pop(client, None)
        self.holdings.lost(client)
        self.changed()

    def failed(self, event: Failed, number: int) -> None:
        """Give a client of local work, which trains on its chunks together, no chunk that it cannot load.

        It keeps its last chunk, and gets the others again after some rounds, or when it joins anew.
        """
        held = self.holdings.present.get(event.client, frozenset())
        failed = held.intersection(event.chunks)
        known = self._fails.get(event.client, {})
        if self._leaves_out and failed and held - failed - known.keys():
            self._fails[event.client] = known | dict.fromkeys(failed, number)
            self.changed()

    def retry(self, number: int) -> None:
        """Give clients the chunks again that they could not load some rounds ago."""
        for client, known in list(self._fails.items()):
            left = {chunk: failed for chunk, failed in known.items() if number - failed < RETRY_AFTER}
            if left != known:
                self._fails[client] = left
                self.changed()

    def changed(self) -> None:
        """Make a new fleet for the next plan: a client is leaving, or others are members."""
        self._fleet = None

    def begin(self, plan: Plan, behind: Container[str]) -> list[Joined]:
        """Return the clients that take part in a round of this plan; what they have kept counts once.

        Those that are `behind` still train or send for an earlier round.
        """
        among = plan.held if plan.chosen_from else self.present
        taking_part = [each for each in self.present.values() if each.client in among]
        taking_part = [each for each in taking_part if each.client not in behind]
        for joined in taking_part:
            if joined.kept:
                self.present[joined.client] = replace(joined, kept=())
        return taking_part
