"""Rules for the local steps of rivals: what FedProx, SCAFFOLD and TimelyFL change in plain local SGD.

    FedProx    adds mu * (model - common model) to each gradient (Li et al., MLSys 2020, arXiv:1812.06127)
    SCAFFOLD   adds c - c_i to each gradient; c_i becomes c_i - c + update / (steps * rate), and c is the mean
               of all c_i by samples (Karimireddy et al., ICML 2020, arXiv:1910.06378, option II). Each
               transfer has two vectors
    TimelyFL   ends a round when the `awaited`-th quickest client is done. A slower client trains only the
               layers next to the output, a share of the model by which it is done as well (Zhang et al., CVPR
               2023 workshops, arXiv:2304.06947). Each layer is the mean of the clients that trained it.
               Not reproduced: more local epochs for clients that are much quicker than the interval, and the
               smaller upload of a part of the model. As in the paper, the time of a step is proportional to
               the share of the model; speeds are known exactly, and the last layer is always trained, which
               both favor it

An arm names a `LocalRule`; a run makes a `LocalSteps` from it, which `ArmFleet` asks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fedgc.messages import Work
from fedgc.sim.clock import Conditions, Scenario
from fedgc.training.flat import Vector
from fedgc.training.tasks import Task

Float = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Parts:
    """What a local step needs to know: the sizes of the layers from input to output, samples, the rate."""

    layers: Sequence[int]
    samples: Sequence[int]  # of each client
    rate: float

    @property
    def size(self) -> int:
        """Return the number of parameters."""
        return sum(self.layers)


class LocalSteps:
    """The state of a rule in one run; this base is plain local SGD."""

    proximal = 0.0  # weight of the distance from the common model

    def offset(self, work: Work) -> Vector | None:  # noqa: ARG002  plain
        """Return what is added to each gradient of a client."""
        return None

    def trained(self, work: Work) -> Vector | None:  # noqa: ARG002  plain
        """Return 1 for each parameter that a client trains in this round and 0 for others; None: all."""
        return None

    def sent(self, work: Work, update: Vector, steps: int) -> Vector:  # noqa: ARG002  plain
        """Return the update that the server adds, of a client that has done so many steps."""
        return update

    def loaded(self) -> None:
        """Begin with a new common model."""


class LocalRule(Protocol):
    """A rule, as an arm names it; frozen, since it is sent to other processes."""

    @property
    def vectors(self) -> int:
        """Return how many vectors of the model's size travel in each transfer."""

    def scenario(self, scenario: Scenario) -> Scenario:
        """Return the conditions under this rule."""

    def steps(self, parts: Parts, scenario: Scenario) -> LocalSteps:
        """Return the state of one run; `scenario` is without the rule's changes."""


@dataclass(frozen=True, slots=True)
class Proximal:
    """FedProx with the weight `mu`."""

    mu: float
    vectors: ClassVar[int] = 1

    def scenario(self, scenario: Scenario) -> Scenario:
        """Return the same conditions."""
        return scenario

    def steps(self, parts: Parts, scenario: Scenario) -> LocalSteps:  # noqa: ARG002  it has no state
        """Return the proximal term."""
        made = LocalSteps()
        made.proximal = self.mu
        return made


@dataclass(frozen=True, slots=True)
class Scaffold:
    """SCAFFOLD."""

    vectors: ClassVar[int] = 2

    def scenario(self, scenario: Scenario) -> Scenario:
        """Return the same conditions: links carry `vectors` anyway."""
        return scenario

    def steps(self, parts: Parts, scenario: Scenario) -> LocalSteps:  # noqa: ARG002  by clients alone
        """Return control variates of zero."""
        return _ControlVariates(parts)


class _ControlVariates(LocalSteps):
    def __init__(self, parts: Parts) -> None:
        samples = np.array(parts.samples, np.float64)
        self._shares, self._rate = samples / samples.sum(), parts.rate
        self._own = np.zeros((len(samples), parts.size), np.float32)
        self._common = np.zeros(parts.size, np.float32)
        self._next = self._common.copy()

    def offset(self, work: Work) -> Vector:
        """Return c - c_i."""
        difference: Vector = self._common - self._own[client_of(work)]
        return difference

    def sent(self, work: Work, update: Vector, steps: int) -> Vector:
        """Set the client's control variate; the common one changes with the next model."""
        at = client_of(work)
        change = update / np.float32(steps * self._rate) - self._common
        self._own[at] += change
        self._next += np.float32(self._shares[at]) * change
        return update

    def loaded(self) -> None:
        """Send the new common control variate with the new model."""
        self._common = self._next.copy()


@dataclass(frozen=True, slots=True)
class Timely:
    """TimelyFL, in which a round takes as long as the `awaited`-th quickest client needs."""

    awaited: int
    vectors: ClassVar[int] = 1

    def scenario(self, scenario: Scenario) -> Scenario:
        """Return conditions under which nobody is slower than the interval."""
        within: dict[int, Conditions] = {}
        for each in scenario:
            if id(each) not in within:
                within[id(each)] = self._within(each)
        return tuple(within[id(each)] for each in scenario)

    def steps(self, parts: Parts, scenario: Scenario) -> LocalSteps:
        """Return the layers of each client in each round."""
        return _OuterLayers(parts, [self.shares(each) for each in scenario])

    def shares(self, conditions: Conditions) -> Float:
        """Return the share of the model that each client can train within the interval.

        >>> from fedgc.sim.clock import working
        >>> Timely(2).shares(working([[1.0], [2.0], [8.0]])).tolist()
        [1.0, 1.0, 0.25]
        """
        pace_w = conditions.mean_pace_w
        shares_w: Float = np.minimum(1.0, np.sort(pace_w)[self.awaited - 1] / pace_w)
        return shares_w

    def _within(self, conditions: Conditions) -> Conditions:
        return replace(conditions, pace_wk=conditions.pace_wk * self.shares(conditions)[:, None])


class _OuterLayers(LocalSteps):
    def __init__(self, parts: Parts, shares_rw: Sequence[Float]) -> None:
        self._parts, self._shares_rw = parts, shares_rw
        self._known: dict[float, Vector] = {}

    def trained(self, work: Work) -> Vector | None:
        """Return the mask of a client that is slower than the interval."""
        share = float(self._shares_rw[work.round - 1][client_of(work)])
        return None if share >= 1.0 else self._mask(share)

    def sent(self, work: Work, update: Vector, steps: int) -> Vector:  # noqa: ARG002  all do as many
        """Scale each layer, so that the mean over all clients is one over those that trained it."""
        samples = np.array(self._parts.samples, np.float64)
        whole = np.zeros(self._parts.size)
        for share, count in zip(self._shares_rw[work.round - 1], samples, strict=True):
            whole += count * (1.0 if share >= 1.0 else self._mask(float(share)))
        scaled: Vector = (update * (samples.sum() / whole)).astype(np.float32)
        return scaled

    def _mask(self, share: float) -> Vector:
        if share not in self._known:
            self._known[share] = outer_layers(self._parts.layers, share)
        return self._known[share]


def outer_layers(layers: Sequence[int], share: float) -> Vector:
    """Return 1 for the parameters of the last layers that are at most `share` of the model together.

    >>> outer_layers([4, 3, 1], 0.5).tolist(), outer_layers([4, 3, 1], 0.01).tolist()
    ([0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0])
    """
    kept = layers[-1]
    for size in reversed(layers[:-1]):
        if kept + size > share * sum(layers):
            break
        kept += size
    mask = np.zeros(sum(layers), np.float32)
    mask[-kept:] = 1.0
    return mask


def parts_of(task: Task, rate: float) -> Parts:
    """Return the parts of a task with one chunk for each client."""
    layers = [sum(own.numel() for own in layer.parameters(recurse=False)) for layer in task.model().modules()]
    return Parts([size for size in layers if size], list(task.sizes().values()), rate)


def sending(scenario: Scenario, vectors: int) -> Scenario:
    """Return the conditions for transfers of this many vectors.

    >>> from fedgc.sim.clock import working
    >>> sending((working([[1.0]], up_s=3.0, down_s=1.0),), 2)[0].up_s_w.tolist()
    [6.0]
    """
    known = {id(each): each for each in scenario}
    made = {
        key: replace(each, up_s_w=vectors * each.up_s_w, down_s_w=vectors * each.down_s_w)
        for key, each in known.items()
    }
    return tuple(made[id(each)] for each in scenario)


def client_of(work: Work) -> int:
    """Return the index of the client of simulated work."""
    return int(work.client.split()[1])
