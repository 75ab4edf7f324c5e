"""The measured speed of each client, round by round, as arrays.

A client that finished no chunk has no measurement. Omitting such rounds would make slow clients look fast, so
if the other clients' work shows how long the round lasted, that time counts as the client's time for one
chunk, a lower bound. Impossible values (times that are not finite or not above 0) are rejected and counted.

Shape letters: r rounds (oldest first), w clients.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from fedgc.errors import BadSetting
from fedgc.history import WINDOW, ClientRow, PastRound, RoundRow, Speed, Speeds, median_and_spread
from fedgc.sim.clock import NEVER, Scenario

Float = NDArray[np.float64]
Bool = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ClientHistory:
    """Seconds of a local step (NaN: not measured), failures, and the number of rejected values.

    `sources` names the run and round of each row, if known. `ratios` are the times of predicted rounds over
    the mean of the replays that predicted them, oldest first.
    """

    clients: tuple[str, ...]
    step_rw: Float
    failed_rw: Bool
    struck: int = 0
    sources: tuple[tuple[str, int], ...] = ()
    ratios: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.step_rw.shape != self.failed_rw.shape or self.step_rw.shape[1:] != (len(self.clients),):
            raise BadSetting(
                f"history of {len(self.clients)} clients: saw times {self.step_rw.shape} and failures "
                f"{self.failed_rw.shape}, needed rounds x clients of both"
            )
        if self.sources and len(self.sources) != len(self.step_rw):
            raise BadSetting(f"history of {len(self.step_rw)} rounds: saw the names of {len(self.sources)}")
        known = self.step_rw[~np.isnan(self.step_rw)]
        if not (np.isfinite(known) & (known > 0)).all():
            raise BadSetting("history: saw a step that took no finite time above 0, needed NaN in its place")
        if not all(math.isfinite(ratio) and ratio > 0 for ratio in self.ratios):
            raise BadSetting(f"history: saw ratios {self.ratios}, needed finite ones above 0")

    @property
    def rounds(self) -> int:
        """Return the number of rounds."""
        return len(self.step_rw)

    @property
    def contradictory(self) -> bool:
        """Return whether at least as many values were rejected as kept."""
        return self.struck > 0 and self.struck >= int(np.isfinite(self.step_rw).sum())

    def seen(self, w: int) -> dict[str, tuple[int, ...]]:
        """Return the rounds, by run, in which this client was measured or failed."""
        found: dict[str, tuple[int, ...]] = {}
        there_r = np.isfinite(self.step_rw[:, w]) | self.failed_rw[:, w]
        for (run, number), there in zip(self.sources, there_r.tolist(), strict=bool(self.sources)):
            if there:
                found[run] = (*found.get(run, ()), number)
        return found


def nothing(clients: Sequence[str]) -> ClientHistory:
    """Return the empty history of new clients."""
    none = np.empty((0, len(clients)))
    return ClientHistory(tuple(clients), none, none.astype(bool))


def recall(history: Iterable[PastRound], clients: Sequence[str]) -> ClientHistory:
    """Return the history of these clients from the last rounds, oldest first."""
    index = {client: w for w, client in enumerate(clients)}
    recent = [each for each in history if any(seen.client in index for seen in each.row.clients)][-WINDOW:]
    step_rw = np.full((len(recent), len(index)), np.nan)
    failed_rw = np.zeros(step_rw.shape, bool)
    struck = 0
    for at, row in enumerate(each.row for each in recent):
        least = _least_step_s(row)
        for seen in row.clients:
            if seen.client not in index:
                continue
            w = index[seen.client]
            failed_rw[at, w] = bool(seen.failure) and not seen.counted  # else it failed in part
            false = _false(seen)
            struck += false
            step_rw[at, w] = np.nan if false else _step_s(seen, least)
    sources = tuple((each.run, each.row.round) for each in recent)
    return ClientHistory(tuple(clients), step_rw, failed_rw, struck, sources, _ratios(recent))


def _ratios(recent: Iterable[PastRound]) -> tuple[float, ...]:
    """Return round times over the means of their replays; impossible times are left out."""
    timed = ((each.row.working_s + each.row.collecting_s, each.replay_s) for each in recent)
    found = (seconds / replay_s for seconds, replay_s in timed if replay_s)
    return tuple(ratio for ratio in found if math.isfinite(ratio) and ratio > 0)


def _false(seen: ClientRow) -> bool:
    """Return whether its time is impossible, or was rejected from its row before."""
    if seen.step_s is None:  # a failure may tell steps that no report has timed
        return seen.finished > 0 and not seen.failure
    return not (math.isfinite(seen.step_s) and seen.step_s > 0)


def _least_step_s(row: RoundRow) -> float:
    """Return the least seconds of a step of a client that finished no chunk in this round; NaN: unknown."""
    targets = [seen.steps // seen.finished for seen in row.clients if seen.finished > 0]
    usable = targets and max(targets) > 0 and math.isfinite(row.working_s) and row.working_s > 0
    return row.working_s / max(targets) if usable else math.nan


def _step_s(seen: ClientRow, least: float) -> float:
    if seen.step_s is not None:
        return seen.step_s
    return math.nan if seen.failure or seen.finished else least


def remember(
    scenario: Scenario, *, pieces: int = 1, update_bytes: int = 0, names: Sequence[str] = ()
) -> tuple[ClientHistory, Speeds]:
    """Return recorded or modelled rounds as history, and their links; a client has `pieces` chunks.

    Clients without `names` are called client 0, client 1, and so on.
    """
    clients = tuple(names) or tuple(f"client {w}" for w in range(scenario[0].clients))
    recent = scenario[-WINDOW:]
    step_rw = np.stack([conditions.mean_pace_w / pieces for conditions in recent])
    failed_rw = np.stack([conditions.dies_s_w < NEVER for conditions in recent])
    first = len(scenario) - len(recent) + 1
    sources = tuple(("trace", first + at) for at in range(len(recent)))
    history = ClientHistory(clients, step_rw, failed_rw, sources=sources)
    links = {}
    for client, up_s_r in zip(clients, np.stack([each.up_s_w for each in recent]).T.tolist(), strict=True):
        rates = [update_bytes / up_s for up_s in up_s_r if update_bytes and 0 < up_s < NEVER]
        links[client] = Speed(client, 1.0, up_bytes_s=median(rates) if rates else None)
    return history, robust(history, Speeds(links))


def robust(history: ClientHistory, before: Speeds) -> Speeds:
    """Return each client's speed: median and spread of its rounds here, else from `before`.

    >>> history = ClientHistory(("a",), np.array([[1.0], [1.0], [9.0]]), np.array([[False], [True], [False]]))
    >>> known = robust(history, Speeds()).known["a"]
    >>> known.step_s, known.rounds, round(known.failures, 2)
    (1.0, 3, 0.33)
    """
    known = dict(before.known)
    for w, client in enumerate(history.clients):
        times = history.step_rw[:, w]
        seen = times[np.isfinite(times)]
        if not seen.size:
            continue
        middle, spread_s = median_and_spread(seen.tolist())
        old = known.get(client)
        known[client] = Speed(
            client,
            middle,
            spread_s,
            failures=float(history.failed_rw[:, w].mean()),
            up_bytes_s=old.up_bytes_s if old else None,
            down_bytes_s=old.down_bytes_s if old else None,
            rounds=seen.size,
        )
    return Speeds(known)
