"""The mean update of a round: an aggregation rule over updates, or the decoded sum of codewords.

With fragments, each has a rule of its own, as a rule may remember the last mean update. With client-level
privacy the rule is the noised mean of clipped updates.

A late update is the difference from an older model, which is right for parameters. Buffers, such as running
variances, are no sums of steps: those of a client are averaged as they are, so as differences from the newest
model. A mean of late differences could make a variance negative.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np

from fedgc.aggregators import AggregationRule, OutlierCheck, Shapes, result_of
from fedgc.codes import RunningSum
from fedgc.config import RunConfig
from fedgc.errors import ExtensionFailed, FedgcError, Refused
from fedgc.fragments import buffers_in, fragment_number, fragment_of, numbers_of
from fedgc.guards import guarded
from fedgc.messages import Add
from fedgc.run.outlier_gain import gain_of
from fedgc.training.flat import Vector
from fedgc.training.private_mean import PrivateMean


def lacking(client: str, error: FedgcError) -> str:
    """Return why a sum lacks the vector of a client.

    >>> lacking("north", Refused("saw 3 numbers, needed 4"))
    'the vector of client north could not be added: saw 3 numbers, needed 4'
    """
    return f"the vector of client {client} could not be added: {error}"


class RoundSum:
    """Aggregates the vectors of a round: by the run's rule for local work, else as exact sum."""

    def __init__(
        self,
        config: RunConfig,
        size: int,
        entropy: Callable[[int], bytes] = os.urandom,
        *,
        parameters: int | None = None,
        checks: bool = False,
    ) -> None:
        """Updates of all of the model have `size` numbers; noise is made from `entropy`.

        The first `parameters` of them are those of parameters (all by default), the others of buffers. With
        `checks` the caller evaluates models, and answers `check`.
        """
        self._counts_late = config.late_updates == "count"
        self._buffers = slice(size if parameters is None else parameters, size)
        self._known: dict[int, Vector] = {}  # the buffers of models from which updates may come
        self.anew: Final = partial(RoundSum, config, size, entropy, parameters=parameters, checks=checks)
        self._size, self._fragments = size, config.fragments
        self._at, self._numbers = 0, size  # the fragment of the present round, and how many numbers it has
        self.name: Final = config.chosen_rule
        rules = min(config.fragments, max(1, size)) if config.work == "local" else 0
        self.private: Final = PrivateMean(config, entropy) if config.is_private else None
        self.rules: Final[Sequence[AggregationRule]] = (  # of each fragment; none in coded work
            [config.new_rule() for _ in range(rules)] if self.private is None else [self.private]
        )
        self._checks = checks and config.check_outliers != "off" and config.fragments == 1
        for number, rule in enumerate(self.rules):
            rule.checks = self._checks
            fragment = fragment_of(number, config.fragments, size)
            rule.buffers = buffers_in(fragment, size, size - self._buffers.start)
        self._updates = 0  # that the rule has taken in this round
        self._lacking = ""  # why the sum of this round lacks a vector
        self.outliers: Mapping[str, float] = {}  # clients far from the others, with the part that counts
        self._sum: RunningSum | None = None  # of codewords, once there is one

    def begin(self, version: int, model: Vector, shapes: Shapes, oldest: int = 0) -> None:
        """Note the common model that the next vectors start from, and its tensors.

        Late updates are of this model, or of one from `oldest` on.
        """
        if self._counts_late:
            self._known = {each: buffers for each, buffers in self._known.items() if each >= oldest}
            self._known[version] = model[self._buffers].copy()
        self._at = fragment_number(version, self._fragments, self._size)
        self._numbers = numbers_of(fragment_of(version, self._fragments, self._size))
        for rule in self.rules:
            with guarded(f"aggregation.rule {self.name}, model {version}", error=ExtensionFailed):
                rule.begin(model, shapes)

    def add(self, add: Add, vector: Vector) -> None:
        """Add the vector of a client; one that cannot be added leaves the round without a mean."""
        try:
            self._add(add, vector)
        except FedgcError as error:
            self._lacking = lacking(add.client, error)
            raise

    def _add(self, add: Add, vector: Vector) -> None:
        before = self._known.get(add.late_from) if add.late_from is not None else None
        if before is not None and before.size:
            vector = vector.copy()
            vector[self._buffers] += self._known[max(self._known)] - before
        if self.rules:
            with guarded(f"aggregation.rule {self.name}", add.client):
                self.rules[self._at].add(add.client, add.weights[0], vector)
            self._updates += 1
            return
        if self._sum is None:
            self._sum = RunningSum(self._size, len(add.weights), np.float32)
        self._sum.add(add.weights, vector)

    def mean(self, weight: float, round_: int) -> Vector | None:
        """Return the mean update (None without vectors) and reset; `weight` divides the sum of codewords.

        Raises:
            Refused: A vector could not be added, or the aggregation rule cannot make a mean of these updates.
            ExtensionFailed: It raised anything else, or returned no mean update; this ends the run.
        """
        if self._lacking:
            raise Refused(self._lacking)
        if self.rules:
            rule, updates, self._updates = self.rules[self._at], self._updates, 0
            try:
                return result_of(rule, self.name, round_, self._numbers, updates)
            finally:
                with guarded(f"aggregation.rule {self.name}, round {round_}", error=ExtensionFailed):
                    self.outliers = rule.outliers
        total, self._sum = self._sum, None
        if total is None:
            return None
        mean: Vector = total.total()
        mean /= np.float32(weight)
        return mean

    @property
    def uncounted(self) -> frozenset[str]:
        """The clients whose updates did not count in the last mean at all."""
        return frozenset(client for client, part in self.outliers.items() if not part)

    @property
    def check(self) -> OutlierCheck | None:
        """An outlier of the last mean whose influence is to be evaluated, if any."""
        if not (self._checks and self.rules):
            return None
        with guarded(f"aggregation.rule {self.name}", error=ExtensionFailed):
            return self.rules[0].check

    def compared(
        self, check: OutlierCheck, figures: Mapping[str, float], others: Mapping[str, float]
    ) -> None:
        """Tell the rule how much better the last model is with a client, by its figures and the other's."""
        gain = gain_of(figures, others)
        if gain is not None:
            with guarded(f"aggregation.rule {self.name}", error=ExtensionFailed):
                self.rules[0].checked(check.client, gain if check.counts else -gain)

    def clear(self) -> None:
        """Discard the vectors of a round that was not exchanged."""
        self._sum, self._updates, self._lacking = None, 0, ""
        for rule in self.rules:
            rule.clear()
