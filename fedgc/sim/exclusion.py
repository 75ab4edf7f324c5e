"""Excludes clients that give nothing, as the server does (`run.fruitless_waits`, `links.quotas`)."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from fedgc.history import ClientRow
from fedgc.links.quotas import Quotas
from fedgc.run.fruitless_waits import FruitlessWaits
from fedgc.run.outputs import Append


class Exclusion:
    """Follows the rounds of one run under the virtual clock."""

    def __init__(self, up_s: Callable[[str], float], update_bytes: int) -> None:
        """`up_s` returns the seconds of a client's uplink for an update of `update_bytes`."""
        self._up_s, self._update_bytes = up_s, update_bytes
        self._waits, self._quotas = FruitlessWaits(), Quotas()

    def after(self, append: Append, now: float) -> Iterator[tuple[str, float]]:
        """Yield the clients to exclude after a round, and for how long."""
        row = append.row
        clients = tuple(self._sent(each, row.collecting_s) for each in row.clients)
        for client, why in self._waits.excluded(replace(row, clients=clients), append.awaited).items():
            yield client, self._quotas.exclude(client, why, now)

    def _sent(self, client: ClientRow, collecting_s: float) -> ClientRow:
        """Return a client's row with the bytes that it can have sent by the end of the round."""
        if not client.finished:
            return client
        up_s = self._up_s(client.client)
        part = min(1.0, collecting_s / up_s) if up_s else 1.0
        return replace(client, up_bytes=int(part * self._update_bytes))
