"""Byte accounts of a client: bytes sent and received in each round, and how long vectors took.

Both ends keep one. Vectors count as up (client to server) or down. All other bytes of a session, and all
lines of a packet and of its answer, count as control.
"""

import operator
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

Kind = Literal["up_bytes", "down_bytes", "control_bytes", "upload_s", "download_s", "refused"]

KEPT_ROUNDS: Final = 64  # rows of older rounds are dropped


@dataclass(frozen=True, slots=True)
class Amounts:
    """The amounts of one client in one round."""

    up_bytes: int = 0
    down_bytes: int = 0
    control_bytes: int = 0
    upload_s: float = 0.0
    download_s: float = 0.0
    refused: int = 0

    def __add__(self, other: "Amounts") -> "Amounts":
        return Amounts(*map(operator.add, self.values, other.values))

    @property
    def values(self) -> tuple[Any, ...]:
        """The amounts in the order of `Kind`."""
        values: tuple[Any, ...] = _VALUES(self)
        return values


_VALUES: Final = operator.attrgetter(*get_args(Kind))
_AT: Final[Mapping[Kind, int]] = {kind: at for at, kind in enumerate(get_args(Kind))}


class Accounts:
    """The amounts of one client by round; a round lasts from its first command to the next round's."""

    def __init__(self) -> None:
        self.round = 0
        self._rounds: dict[int, list[Any]] = {}  # the values of amounts: many are added for each that is read
        self._unsettled = _nothing()
        self._lock = threading.Lock()  # the driver calls `settle` while the link's thread adds

    def add(self, kind: Kind, amount: float, round_: int | None = None) -> None:
        """Add to an amount of a round, by default the current one."""
        key, at = self.round if round_ is None else round_, _AT[kind]
        with self._lock:
            sums = self._rounds.get(key)
            if sums is None:
                sums = self._rounds[key] = _nothing()
                while len(self._rounds) > KEPT_ROUNDS:
                    del self._rounds[min(self._rounds)]
            sums[at] += amount
            self._unsettled[at] += amount

    def take_over(self, amounts: Amounts) -> None:
        """Add what another process has settled to the current round."""
        for kind, amount in zip(_AT, amounts.values, strict=True):
            self.add(kind, amount)

    def of(self, round_: int) -> Amounts:
        """Return the amounts of a round."""
        with self._lock:
            return Amounts(*self._rounds.get(round_, ()))

    def settle(self) -> Amounts:
        """Return the amounts since the last call."""
        with self._lock:
            settled, self._unsettled = self._unsettled, _nothing()
        return Amounts(*settled)


def _nothing() -> list[Any]:
    return list(_VALUES(Amounts()))
