"""Client-level differential privacy of the mean update (DP-FedAvg: McMahan et al., arXiv 1710.06963).

    mean = (sum over n clients of  min(1, clip / |update_i|) * update_i  +  N(0, (noise * clip)^2)) / n

All clients count alike. If the update of one client is replaced by zeros, the sum changes by at most `clip`,
whatever data the client has, and whatever part of its local steps it has done. So an exchange is a Gaussian
mechanism with this noise multiplier, and exchanges compose by the sum of 1 / noise^2 (`secagg.privacy`).
There is no amplification by sampling: the clients of a round are those that are there, or a
sample that is not secret.

With a quantile, the clip follows it (Andrew et al., "Differentially private learning with adaptive clipping",
NeurIPS 2021): it is multiplied by exp(-RATE * (share - quantile)), where `share` is the noised share of the
updates within the clip. An update of zeros counts as within it, so the count changes by at most 1. The counts
take the part COUNTS of 1 / noise^2, the updates the rest; both together are one exchange with `noise`.
"""

import json
import math
from collections.abc import Callable, Iterable
from typing import Final

import numpy as np

from fedgc.aggregators import AggregationRule, squared_norm
from fedgc.config import AUTO, RunConfig
from fedgc.errors import BadSetting, EdgeFailed, Refused
from fedgc.secagg.keys import KEY_BYTES
from fedgc.secagg.privacy import NOISE_BLOCK, Gaussian, epsilon_of, noise_for
from fedgc.secagg.renyi import text_above
from fedgc.training.flat import Vector

COUNTS: Final = 0.05  # of 1 / noise^2: with 10 clients and noise 1, a share is off by 0.45
RATE: Final = 0.2  # of the clip
ROUNDING: Final = 1 + 1e-9  # of a sum of 1 / noise^2


class PrivateMean(AggregationRule):
    """The noised mean of clipped updates, and what a run has spent by it; keeps one vector."""

    def __init__(self, config: RunConfig, entropy: Callable[[int], bytes]) -> None:
        """`entropy` returns so many random bytes, which nobody else may know."""
        self._entropy = entropy
        self._most, self._delta = config.privacy_epsilon, config.privacy_delta
        self.noise: Final = (
            noise_for(self._most, config.most_exchanges, self._delta)
            if config.privacy_noise == AUTO
            else float(config.privacy_noise)
        )
        self._check()
        self.clip = config.privacy_clip
        self._quantile = config.privacy_clip_quantile
        self._counts = COUNTS if self._quantile else 0.0
        self._spent = 0.0  # sum of 1 / noise^2
        self._ending: str | None = None  # once it is known
        self._sum: Vector | None = None
        self._clients = self._within = 0

    def _check(self) -> None:
        """Raise BadSetting if not even one exchange is within the budget."""
        if self._most and epsilon_of(self.noise**-2, self._delta) > self._most * ROUNDING:
            least = math.ceil(1000 * noise_for(self._most, 1, self._delta)) / 1000
            raise BadSetting(
                f"setting privacy.noise: saw {self.noise:g}, needed at least {least:g}: with less, one "
                f"exchange spends more than privacy.epsilon ({self._most:g})"
            )

    # ---- the rule

    def add(self, client: str, weight: float, update: Vector) -> None:  # noqa: ARG002  all clients count alike
        """Add the clipped update to the sum."""
        norm = math.sqrt(squared_norm(update))
        if self._sum is None:
            self._sum = np.zeros(update.size, np.float32)
        factor = min(1.0, self.clip / norm) if norm else 1.0
        for first in range(0, update.size, NOISE_BLOCK):
            tile = slice(first, first + NOISE_BLOCK)
            self._sum[tile] += np.float32(factor) * update[tile]
        self._clients += 1
        self._within += norm <= self.clip

    def result(self) -> Vector | None:
        """Return the noised mean, and charge it to the budget.

        Raises:
            Refused: The budget is spent.
        """
        total, clients, within = self._sum, self._clients, self._within
        self.clear()
        if total is None:
            return None
        if self.ending:
            raise Refused(self.ending)
        self._spent, self._ending = self._spent + self.noise**-2, None
        deviation = self.noise / math.sqrt(1 - self._counts) * self.clip
        source = self._gaussian(deviation)
        for first in range(0, total.size, NOISE_BLOCK):
            part = total[first : first + NOISE_BLOCK]
            part[...] = (part + source.next(part.size)) / clients
        if self._counts:
            self._follow(within, clients)
        return total

    def clear(self) -> None:
        """Discard the updates of a round."""
        self._sum, self._clients, self._within = None, 0, 0

    def _follow(self, within: int, clients: int) -> None:
        """Move the clip towards the quantile, by a noised count."""
        (noise,) = self._gaussian(self.noise / math.sqrt(self._counts)).next(1)
        share = min(1.0, max(0.0, (within + noise) / clients))
        self.clip *= math.exp(-RATE * (share - self._quantile))

    def _gaussian(self, deviation: float) -> Gaussian:
        return Gaussian(deviation, self._entropy(KEY_BYTES))

    # ---- the budget

    @property
    def figures(self) -> dict[str, float]:
        """The epsilon that is spent, and a clip that changes."""
        spent = {"epsilon": epsilon_of(self._spent, self._delta)}
        return {**spent, "clip": self.clip} if self._quantile else spent

    @property
    def ending(self) -> str:
        """Why no exchange can follow; empty if one can."""
        if self._ending is None:
            after = epsilon_of(self._spent + self.noise**-2, self._delta)
            self._ending = (
                "the privacy budget is spent: with one more exchange epsilon would be "
                f"{text_above(after, self._most)}, needed at most {self._most:g} (privacy.epsilon)"
                if self._most and after > self._most * ROUNDING
                else ""
            )
        return self._ending

    def text(self) -> str:
        """Return what a resumed run has to know."""
        return json.dumps({"spent": self._spent, "clip": self.clip})

    def restore(self, text: str) -> None:
        """Continue from what `text` has written.

        Raises:
            BadSetting: The run had no privacy before.
            EdgeFailed: The text cannot be read.
        """
        if not text:
            raise BadSetting(
                "resume: saw a run that began without privacy, needed a new one with privacy.noise "
                "or privacy.epsilon"
            )
        self._spent, clip = _read(text)
        self._ending = None
        self.clip = clip if self._quantile else self.clip


def with_most_spent(text: str, others: Iterable[str]) -> str:
    """Return the state of one checkpoint, with the most that any of them has spent.

    A run that goes on from an earlier model has released the later ones too.

    >>> with_most_spent('{"spent": 1.0, "clip": 2.0}', ['{"spent": 3.0, "clip": 4.0}'])
    '{"spent": 3.0, "clip": 2.0}'

    Raises:
        EdgeFailed: A text cannot be read.
    """
    spent, clip = _read(text)
    return json.dumps({"spent": max([spent, *(_read(each)[0] for each in others)]), "clip": clip})


def _read(text: str) -> tuple[float, float]:
    """Return what is spent, and the clip."""
    try:
        kept = json.loads(text)
        spent, clip = float(kept["spent"]), float(kept["clip"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise EdgeFailed(f"privacy: saw a state that cannot be read ({error})") from error
    if not (math.isfinite(spent) and spent >= 0 and math.isfinite(clip) and clip > 0):
        raise EdgeFailed(f"privacy: saw {spent} spent and a clip of {clip}, needed finite numbers")
    return spent, clip
