"""The conditions of one round as arrays: speed, links, latency and failures of each client.

Work is counted in *units*: a unit is one client's equal share of all the data, so a round has as many units
as clients, for any number of chunks. Client w needs `pace_wk[w, k]` seconds for a unit in the k-th slice of
its own work. Slices are `slice_units` long and repeat. One slice means a constant pace; recorded
micro-batches are many slices.

A vector's size is counted in whole updates. `up_s_w` and `down_s_w` are the seconds per update on the
client's own link, before the server's link limits it (`server_link`); a client whose uplink takes `NEVER`
reports its work and sends no vector. A client that dies loses its work.

Shape letters: w clients, k slices.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedgc.errors import BadSetting

Float = NDArray[np.float64]
Int = NDArray[np.int64]
NEVER: Final = float("inf")
_OF_A_CLIENT: Final = ("up_s_w", "down_s_w", "control_s_w", "dies_s_w", "returns_s_w")


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of one round; `working` makes them from paces alone."""

    pace_wk: Float
    up_s_w: Float
    down_s_w: Float
    control_s_w: Float
    dies_s_w: Float
    returns_s_w: Float
    slice_units: float = 1.0
    _ends_wk: Float = field(init=False, repr=False, compare=False)  # seconds to the end of each slice

    def __post_init__(self) -> None:
        shape = self.pace_wk.shape
        if len(shape) != 2 or 0 in shape:
            raise BadSetting(f"paces of shape {shape}: clients x slices are needed, one at least of each")
        _all(self.pace_wk, "paces", above_zero=True)
        sends_w = np.where(self.up_s_w == NEVER, 0.0, self.up_s_w)
        for name, values_w in (
            ("up_s_w", sends_w), ("down_s_w", self.down_s_w), ("control_s_w", self.control_s_w),
        ):  # fmt: skip
            _all(values_w, name, above_zero=False)
        for name in _OF_A_CLIENT:
            if getattr(self, name).shape != shape[:1]:
                raise BadSetting(
                    f"{name} of shape {getattr(self, name).shape}: one of {shape[0]} clients each"
                )
        if not self.slice_units > 0:
            raise BadSetting(f"slices of {self.slice_units} units: more than 0 is needed")
        if (self.returns_s_w < self.dies_s_w).any():
            raise BadSetting("a client returns before it dies: a later return is needed")
        object.__setattr__(self, "_ends_wk", np.cumsum(self.pace_wk * self.slice_units, axis=1))

    @property
    def clients(self) -> int:
        """Return the number of clients."""
        return len(self.pace_wk)

    @property
    def mean_pace_w(self) -> Float:
        """Return the seconds for a unit, averaged over the slices."""
        mean_w: Float = self.pace_wk.mean(axis=1)
        return mean_w

    def only(self, rows_w: Int) -> "Conditions":
        """Return the conditions of these clients in this order; a client may be repeated.

        >>> working([[1.0], [2.0], [3.0]]).only(np.array([2, 0])).pace_wk.tolist()
        [[3.0], [1.0]]
        """
        each = {name: getattr(self, name)[rows_w] for name in ("pace_wk", *_OF_A_CLIENT)}
        return replace(self, **each)

    def after_s(self, units_w: Float) -> Float:
        """Return when each client has done this many units, ignoring failures.

        >>> working([[1.0, 3.0], [2.0, 2.0]], slice_units=0.5).after_s(np.array([0.75, 2.0])).tolist()
        [1.25, 4.0]
        """
        slices = self.pace_wk.shape[1]
        if slices == 1:
            constant_w: Float = self.pace_wk[:, 0] * units_w
            return constant_w
        laps_w, rest_w = np.divmod(np.asarray(units_w, np.float64), self.slice_units * slices)
        slice_w = np.minimum((rest_w / self.slice_units).astype(np.int64), slices - 1)
        row_w = np.arange(self.clients)
        before_w = np.where(slice_w > 0, self._ends_wk[row_w, slice_w - 1], 0.0)
        inside_w = (rest_w - slice_w * self.slice_units) * self.pace_wk[row_w, slice_w]
        whole_w: Float = laps_w * self._ends_wk[:, -1] + before_w + inside_w
        return whole_w


def working(
    pace_wk: Iterable[Iterable[float]] | Float,
    *,
    up_s: float | Float = 0.0,
    down_s: float | Float = 0.0,
    control_s: float | Float = 0.0,
    slice_units: float = 1.0,
) -> Conditions:
    """Return conditions without failures; one number applies to all clients.

    >>> working([[1.0], [2.0]], up_s=3.0).up_s_w.tolist()
    [3.0, 3.0]
    """
    paces_wk = np.asarray(pace_wk, np.float64)
    never_w = np.full(len(paces_wk), NEVER)

    def each(value: float | Float) -> Float:
        return np.broadcast_to(np.asarray(value, np.float64), never_w.shape).copy()

    return Conditions(paces_wk, each(up_s), each(down_s), each(control_s), never_w, never_w, slice_units)


def _all(values: Float, name: str, *, above_zero: bool) -> None:
    good = np.isfinite(values) & ((values > 0) if above_zero else (values >= 0))
    if not good.all():
        where = tuple(int(at) for at in np.argwhere(~good)[0])
        least = "above 0" if above_zero else "of 0 or more"
        raise BadSetting(f"{name}: saw {values[where]} at {where}, needed finite numbers {least}")
