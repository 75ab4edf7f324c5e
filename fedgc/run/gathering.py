"""The wait for clients before a round: how many it needs, and until when they are awaited."""

import math
from collections.abc import Iterable, Mapping
from typing import Final

from fedgc.config import RunConfig
from fedgc.errors import numbered
from fedgc.messages import Event, Tick
from fedgc.round.masked.key_agreement import KeyAgreement
from fedgc.round.waiting import Waiting
from fedgc.run.clients import Clients
from fedgc.run.outputs import RunState
from fedgc.run.rows import chunkless, fewer_would_do

SCRIPTS_LEFT: Final = "all clients have left the run: their scripts have ended their training"
RETURN_S: Final = 10.0  # a client gives up its session to the server that ended, and starts a process
NO_CHUNK: Final = "it announced no chunk"


class Returns:
    """Knows the clients of the last exchange that a resumed run waits for before its first round.

    They went on training after the server had ended, and would lose these steps if a round was exchanged
    without them. The wait for them begins when enough clients for a round are back.
    """

    def __init__(self, clients: Iterable[str] = ()) -> None:
        self.missing: Final = set(clients)
        self.until = math.inf

    def awaited(self, now: float, end: float, *, enough: bool) -> bool:
        """Whether a round has to wait, until `end` at the latest; `enough` clients could begin it.

        >>> returns = Returns({"a"})
        >>> [returns.awaited(now, 60.0, enough=True) for now in (5.0, 14.0, 15.0)]
        [True, True, False]
        """
        if enough:
            self.until = min(self.until, now + RETURN_S, end)
        if now >= self.until or not self.missing:
            self.missing.clear()
            self.until = math.inf
        return bool(self.missing)


class Gathering:
    """Knows when a round may begin: `min-clients` are awaited before the first one, later any client.

    In a masked run, each round needs a quorum of sites.
    """

    def __init__(
        self,
        config: RunConfig,
        clients: Clients,
        now: float,
        *,
        keys: KeyAgreement | None,
        resume: RunState | None,
        fleet: int | None = None,
    ) -> None:
        """Wait from now on; after a resume also for the clients of the last exchange."""
        quorum = keys.federation.quorum if keys else 1
        self.wanted = max(quorum, config.min_clients)  # clients that the next round waits for
        self._clients: Final = clients
        self._quorum: Final = quorum
        self._timeout_s: Final = config.start_timeout_s
        self._returns: Final = Returns(resume.clients if resume else ())
        self._all = fleet  # clients that there are, if that is known
        self._fleet = fleet  # the same, until a round has begun
        self._end = now + config.start_timeout_s

    @property
    def until(self) -> float:
        """When the wait ends."""
        return min(self._end, self._returns.until)

    @property
    def waiting(self) -> Waiting:
        """The clients that are awaited, until when, and how many are needed."""
        clients, able = self._clients, set(self._clients.able)
        known = clients.holdings.amounts.by_client.keys() | clients.present.keys() | self._returns.missing
        return Waiting(frozenset(known - able), self.until, max(0, self.wanted - len(able)))

    @property
    def idle(self) -> Mapping[str, str]:
        """The clients without a chunk, and why, once enough clients for a round are there."""
        if len(self._clients.present) < self.wanted:
            return {}
        holdings = self._clients.holdings
        refused, present = holdings.refused, holdings.present
        return {client: refused.get(client, NO_CHUNK) for client, held in present.items() if not held}

    @property
    def lacks_data(self) -> bool:
        """Whether all clients that there are have come, and those with a chunk are too few."""
        fleet, present = self._fleet, len(self._clients.present)
        return fleet is not None and present >= fleet and present - len(self.idle) < self.wanted

    @property
    def is_hopeless(self) -> bool:
        """Whether no wait helps: too few of those that there are can work, or all have left for good."""
        return self.lacks_data or self._have_left

    @property
    def _have_left(self) -> bool:
        return self._all is not None and len(self._clients.departures.for_good) >= self._all

    def joined(self, client: str) -> None:
        """Note that a client is back."""
        self._returns.missing.discard(client)

    def awaits(self, now: float) -> bool:
        """Whether more clients have to come; of those that are there, some may not be able to work."""
        enough = len(self._clients.present) >= self.wanted
        return self._returns.awaited(now, self._end, enough=enough) or not enough

    def is_over(self, event: Event) -> bool:
        """Whether this is the tick that ends the wait."""
        return isinstance(event, Tick) and event.now >= self._end

    def extend(self, now: float) -> None:
        """Wait anew."""
        self._end = now + self._timeout_s

    def begun(self) -> None:
        """Note that a round has begun: later ones may have fewer clients."""
        self.wanted, self._fleet = self._quorum, None

    def too_few(self, able: int) -> str:
        """Return why no round begins with so many clients that are able to work."""
        if self._have_left:
            return SCRIPTS_LEFT
        holdings = self._clients.holdings
        without = chunkless(holdings.present, holdings.refused)
        if self.lacks_data:
            there = len(holdings.present)
            seen = f"saw {able} of {there} clients that can work, needed {self.wanted}{without}"
        else:
            wanted = numbered(self.wanted, "client")
            seen = f"waited {self._timeout_s:g} s for {wanted}, saw {able}{without}"
            if left := len(self._clients.departures.leaving.keys() & self._clients.present.keys()):
                seen += f"; {left} that {'is' if left == 1 else 'are'} connected left the run"
        if holdings.refused:  # with fewer clients, theirs would be left out for good
            return seen
        return seen + fewer_would_do(able, self._quorum, self.wanted)
