"""Byte accounts of a client: bytes sent and received, and how long vectors took.

Both ends keep one. Vectors count as up (client to server) or down. All other bytes of a session, and all
lines of a packet and of its answer, count as control.
"""

import operator
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

Kind = Literal["up_bytes", "down_bytes", "control_bytes", "upload_s", "download_s", "refused"]


@dataclass(frozen=True, slots=True)
class Amounts:
    """The amounts of one client, in a round or over several."""

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
    """The amounts of one client since they were settled; `round` is the one that it works on."""

    def __init__(self) -> None:
        self.round = 0
        self._unsettled = _nothing()  # the values of amounts: many are added for each that is read
        self._lock = threading.Lock()  # the driver calls `settle` while the link's thread adds

    def add(self, kind: Kind, amount: float) -> None:
        """Add to an amount."""
        with self._lock:
            self._unsettled[_AT[kind]] += amount

    def take_over(self, amounts: Amounts) -> None:
        """Add what another process has settled."""
        for kind, amount in zip(_AT, amounts.values, strict=True):
            self.add(kind, amount)

    def settle(self) -> Amounts:
        """Return the amounts since the last call."""
        with self._lock:
            settled, self._unsettled = self._unsettled, _nothing()
        return Amounts(*settled)


def _nothing() -> list[Any]:
    return list(_VALUES(Amounts()))
