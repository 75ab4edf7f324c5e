"""The interface of an aggregation rule."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedgc.aggregators.outlier_check import OutlierCheck

Vector = NDArray[np.float32]
Shapes = Sequence[tuple[str, tuple[int, ...]]]  # the names and shapes of a vector's tensors, in its order


class AggregationRule(ABC):
    """Makes one mean update from the updates of local work; the base class of every aggregation rule.

    To add a rule, write one class and register it as an entry point of the group `fedgc.aggregators`; the
    setting `aggregation.rule` then takes its name. Keyword-only arguments of the constructor are the rule's
    own options: the setting `aggregation.options` gives them as "name=value, name=value", converted to the
    type of their default.

    The server has one instance for a run, and a new one when the run goes back to an earlier model. It calls
    `begin` with the common model before the updates that start from it. In each round it calls `add` for
    every update as it arrives, and then `result`, or `clear` if the round ends without an exchange. A rule
    whose result needs all updates at once is a subclass of `CollectingRule`.

    >>> import numpy as np
    >>> from fedgc.aggregators.weighted_mean import WeightedMean
    >>> rule = WeightedMean()
    >>> rule.add("a", 30.0, np.array([1.0, 4.0], np.float32))
    >>> rule.add("b", 10.0, np.array([5.0, 0.0], np.float32))
    >>> rule.result().tolist()
    [2.0, 3.0]
    """

    summary: ClassVar[str] = ""
    """A description of the rule for `fedgc config`, in a few words."""

    def begin(self, model: Vector, shapes: Shapes) -> None:  # noqa: B027  most rules need no model
        """Note the common model that the next updates start from; by default it is not needed.

        Args:
            model: The common model; do not write to it.
            shapes: The names and shapes of its tensors, in their order.
        """

    @abstractmethod
    def add(self, client: str, weight: float, update: Vector) -> None:
        """Take in one client's update.

        Args:
            client: The client's identity; each adds one update a round.
            weight: The samples that the client trains on, as it reports them.
            update: The common model minus the client's model, all numbers finite. It is not used elsewhere.
        """

    @abstractmethod
    def result(self) -> Vector | None:
        """Return the mean update and begin anew; None only if there was no update.

        None after an update, and an array of another type or length, end the run. A mean with numbers that
        are not finite is left out of the model, with a warning.

        Raises:
            Refused: There are updates, but the rule cannot make a mean of them, for example because they are
                too few. The round then leaves the model as it is.
        """

    @property
    def outliers(self) -> Mapping[str, float]:
        """The clients of the last mean whose updates are far from the others', with the part that counts.

        They are named in the log and in the history. By default there are none.
        """
        return {}

    buffers: int = 0
    """How many numbers of an update, the last ones, are those of buffers; set before the first round.

    Buffers, such as the running statistics of batch normalisation, are no sums of steps.
    """

    checks: bool = False
    """Whether the server evaluates models, and so can answer a `check`; set before the first round."""

    @property
    def check(self) -> OutlierCheck | None:
        """A client of the last mean whose influence the server should evaluate; by default none."""
        return None

    def checked(self, client: str, gain: float) -> None:  # noqa: B027  most rules check no client
        """Take in the result of a check.

        Args:
            client: The client of the check.
            gain: How much better the model of the round is with the client than without it, by an error or
                another figure; below 0 if it is worse.
        """

    def memory(self) -> Mapping[str, NDArray[Any]]:
        """Return what the rule remembers of past rounds, to resume a simulation; by default nothing."""
        return {}

    def recall(self, memory: Mapping[str, NDArray[Any]]) -> None:  # noqa: B027  most rules remember nothing
        """Continue with what `memory` has returned."""

    @abstractmethod
    def clear(self) -> None:
        """Discard the updates of a round that is not exchanged."""
