"""The server's optimizer (Reddi et al., "Adaptive federated optimization", 2021).

A rule of `torch.optim` takes the mean update as the gradient of the trainable parameters. SGD with rate 1 is
federated averaging, and Nesterov's momentum is DiLoCo's (Douillard et al., arXiv 2311.08105). From the
buffers the mean update is subtracted; a variance that it would make negative keeps a part instead, since a
model with a negative variance gives NaN. With schedule-free SGD, clients train from one model, and the
average of another sequence is the model to use (`schedule_free`).

SGD without momentum is done in numpy: the first torch optimizer of a process imports torch's compiler, which
takes a second.

The other rules are elementwise, so the step is done in parts, each a parameter of its own, and in place of
the mean update. Memory holds two models, the rule's state, and torch's temporaries of one part.

The saved state is read by torch's restricted loader, so a checkpoint cannot run code.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from io import BytesIO
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from fedgc.config import RunConfig
from fedgc.errors import BadSetting, BadVector, EdgeFailed
from fedgc.fragments import borders_of
from fedgc.large_vectors import in_tiles
from fedgc.training.flat import Vector, check_shape, check_vector
from fedgc.training.saved_tensors import reason_of
from fedgc.training.schedule_free import ScheduleFreeSGD, average

USUAL_MOMENTUM: Final = 0.9  # of rules that need one, unless the setting says another
SCHEDULE_FREE: Final = "schedule-free"
WITH_MOMENTUM: Final = ("sgd", "nesterov", SCHEDULE_FREE)


def _nesterov(
    parameters: Iterable[Tensor], lr: float, momentum: float = USUAL_MOMENTUM
) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=momentum, nesterov=True)


def _schedule_free(
    parameters: Iterable[Tensor], lr: float, momentum: float = USUAL_MOMENTUM
) -> torch.optim.Optimizer:
    return ScheduleFreeSGD(parameters, lr, momentum)


RULES: Final[Mapping[str, Callable[..., torch.optim.Optimizer]]] = MappingProxyType(
    {
        "sgd": torch.optim.SGD,
        "nesterov": _nesterov,
        SCHEDULE_FREE: _schedule_free,
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "adagrad": torch.optim.Adagrad,
        "rmsprop": torch.optim.RMSprop,
    }
)
PART: Final = 1 << 20  # numbers of one part
KEPT: Final = np.float32(0.5)  # of a variance that a step would make negative
LARGEST: Final = 1e18  # number of a mean update: rules keep squares, and must keep them finite


class ServerOptimizer:
    """The run's server optimizer, over a vector whose first `parameters` numbers are trainable.

    >>> averaging = ServerOptimizer(RunConfig(), parameters=1)
    >>> averaging.apply(np.float32([3, 5]), np.float32([1, 2])).tolist()
    [2.0, 3.0]
    """

    def __init__(
        self,
        config: RunConfig,
        parameters: int,
        borders: Sequence[int] = (0,),
        variances: Sequence[slice] = (),
    ) -> None:
        """`borders` are the numbers at which the parts of the vector begin that are stepped by themselves.

        `variances` are the numbers that must not become negative.
        """
        rule = config.server_optimizer
        options = {"lr": config.server_learning_rate}
        if config.server_momentum:
            if rule not in WITH_MOMENTUM:
                needed = f"needed {', '.join(WITH_MOMENTUM)}, or 0"
                raise BadSetting(f"setting optimizer.server-momentum: saw it with {rule}, {needed}")
            options["momentum"] = config.server_momentum
        self._rule, self._options = rule, options
        self._rate = config.server_learning_rate
        self._parameters, self._variances = parameters, variances
        plain = rule == "sgd" and not config.server_momentum
        slices = [] if plain else _slices([*(each for each in borders if each < parameters), parameters])
        self._parts = [(each, torch.zeros(each.stop - each.start, requires_grad=True)) for each in slices]
        self.residual: Vector | None = None  # what clients were not sent of earlier steps
        self._optimizer = None if plain else RULES[rule]([part for _, part in self._parts], **options)
        self._empty()

    def apply(self, vector: Vector, mean_update: Vector, part: slice | None = None) -> Vector:
        """Return the next model, or the `part` of it that the mean update is of.

        `mean_update` is overwritten with the result.

        Raises:
            BadVector: An argument or the result is not a finite vector, or a number of the mean update is so
                large that the rule's state would not be finite from then on.
        """
        first, last, _ = (part or slice(None)).indices(max(vector.size, self._parameters))
        check = check_shape if self._optimizer is None else check_vector
        check(vector, max(vector.size, self._parameters))
        check(mean_update, last - first)
        if self._optimizer is None:
            is_finite = self._average(vector[first:last], mean_update, first)  # only if the arguments are
        else:
            is_finite = False  # as far as is known
            _check_size(mean_update)
            self._step(self._optimizer, vector[first:last], mean_update, first)
        if not is_finite:
            check_vector(mean_update, last - first)
        self._keep_variances(vector, mean_update, first)
        return mean_update

    def average(self, vector: Vector) -> Vector:
        """Return the model to use when clients train from this one: another with schedule-free SGD only."""
        if not isinstance(self._optimizer, ScheduleFreeSGD) or not self._optimizer.state:
            return vector
        averaged, momentum = vector.copy(), self._optimizer.param_groups[0]["momentum"]
        for numbers, part in self._parts:
            if state := self._optimizer.state.get(part):  # a part that was not stepped yet has none
                y = torch.from_numpy(averaged[numbers])
                y.copy_(average(y, state["z"], momentum))
        return averaged

    def _average(self, vector: Vector, mean_update: Vector, first: int) -> bool:
        """Put the result in place of the mean update; return whether it is finite."""
        rate, trained = np.float32(self._rate), mean_update[: max(0, self._parameters - first)]
        bad: list[int] = []  # where tiles begin

        def subtract(tile: slice) -> None:
            part = mean_update[tile]
            with np.errstate(over="ignore", invalid="ignore"):  # the caller reports overflows
                if rate != 1:
                    trained[tile] *= rate
                np.subtract(vector[tile], part, out=part)
            if not np.isfinite(part).all():
                bad.append(tile.start)

        in_tiles(vector.size, subtract)
        return not bad

    def _keep_variances(self, vector: Vector, new: Vector, first: int) -> None:
        """Leave a part of each variance that the step to `new`, from number `first` on, makes negative."""
        for each in self._variances:
            here = slice(max(each.start, first), min(each.stop, first + new.size))
            if here.start < here.stop:
                before, after = vector[here], new[here.start - first : here.stop - first]
                np.copyto(after, before * KEPT, where=(after < 0) & (before >= 0))

    def _step(
        self, optimizer: torch.optim.Optimizer, vector: Vector, mean_update: Vector, first: int
    ) -> None:
        for each, part in self._parts:  # torch skips parts without a gradient
            if not first <= each.start < first + vector.size:
                continue
            numbers = slice(each.start - first, each.stop - first)
            part.data = torch.tensor(vector[numbers])
            part.grad = torch.from_numpy(mean_update[numbers])
            optimizer.step()
            mean_update[numbers] = part.detach().numpy()
            self._empty()
        buffers = slice(max(0, self._parameters - first), None)
        with np.errstate(over="ignore"):
            np.subtract(vector[buffers], mean_update[buffers], out=mean_update[buffers])

    def _empty(self) -> None:
        for _, part in self._parts:
            part.grad, part.data = None, torch.zeros(0)

    def state(self) -> bytes:
        """Return the serialized state, for `restore`."""
        written = BytesIO()
        own = {"state": {}} if self._optimizer is None else self._optimizer.state_dict()
        kept: dict[str, object] = {"rule": self._rule, "parameters": self._parameters, "state": own}
        if self.residual is not None:
            kept["residual"] = torch.from_numpy(self.residual)
        torch.save(kept, written)
        return written.getvalue()

    def restore(self, state: bytes) -> None:
        """Restore a saved state; raise BadSetting if it is of another rule or model."""
        kept = _read(state)
        if kept["parameters"] != self._parameters:
            raise BadSetting(
                f"the model differs from the checkpoint's: saw {self._parameters} parameters, "
                f"needed {kept['parameters']}"
            )
        if kept["rule"] != self._rule:
            raise BadSetting(
                f"setting optimizer.server: saw {self._rule}, needed the checkpoint's, {kept['rule']}"
            )
        self.residual = _residual_in(kept)
        if self._optimizer is not None:
            groups = self._optimizer.state_dict()["param_groups"]  # the run's settings, not the checkpoint's
            self._load(self._optimizer, {**kept["state"], "param_groups": groups})

    def _load(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Check and load the state of all parts; torch checks neither names nor sizes."""
        kept, names = state.get("state"), self._names()
        sizes = {number: each.stop - each.start for number, (each, _) in enumerate(self._parts)}
        for number, each in kept.items() if isinstance(kept, dict) else [("all", None)]:
            if number not in sizes or not _fits(each, names, sizes[number]):
                raise EdgeFailed(
                    f"server optimizer: saw a state of part {number!r} of another form, "
                    f"needed {', '.join(sorted(names))} for any of {len(sizes)} parts"
                )
        optimizer.load_state_dict({**state, "state": kept})

    def _names(self) -> set[str]:
        """Return the names of the rule's state per parameter, by stepping a dummy parameter."""
        tried = torch.zeros(1, requires_grad=True)
        tried.grad = torch.ones(1)
        probe = RULES[self._rule]([tried], **self._options)
        probe.step()
        return set(probe.state[tried])


def _check_size(mean_update: Vector) -> None:
    """Raise BadVector if a number is too large for the state of a rule."""
    largest = max(float(mean_update.max(initial=0.0)), -float(mean_update.min(initial=0.0)))
    if largest > LARGEST:
        raise BadVector(f"the mean update: saw a number of {largest:.1e}, needed at most {LARGEST:.0e}")


def _slices(borders: Sequence[int]) -> list[slice]:
    """Return the parts of a vector, none of which crosses a border.

    >>> _slices([0, 3])
    [slice(0, 3, None)]
    """
    return [
        slice(at, min(at + PART, end)) for first, end in pairwise(borders) for at in range(first, end, PART)
    ]


def _fits(remembered: object, names: set[str], size: int) -> bool:
    """Whether this is a state of one part: each entry is None, one number, or as long as the part."""
    if not isinstance(remembered, dict) or remembered.keys() != names:
        return False
    tensors = [value for value in remembered.values() if value is not None]
    return all(isinstance(each, torch.Tensor) and each.numel() in (1, size) for each in tensors)


def _read(state: bytes) -> dict[str, Any]:
    try:
        kept = torch.load(BytesIO(state), weights_only=True)
    except Exception as error:  # torch raises many kinds of error for invalid bytes
        raise EdgeFailed(
            f"server optimizer: its {len(state)} bytes of state cannot be read: {reason_of(error)}"
        ) from error
    if not isinstance(kept, dict) or kept.keys() - {"residual"} != {"rule", "parameters", "state"}:
        raise EdgeFailed(f"server optimizer: saw a {type(kept).__name__} of another form as its state")
    return kept


def _residual_in(kept: Mapping[str, Any]) -> Vector | None:
    found = kept.get("residual")
    if found is None:
        return None
    if not isinstance(found, Tensor) or found.dtype != torch.float32 or found.dim() != 1:
        raise EdgeFailed("server optimizer: saw a residual of another form, needed one vector of float32")
    vector: Vector = found.numpy()
    return vector


def averaged(config: RunConfig, state: bytes, vector: Vector) -> Vector:
    """Return the model to use of a checkpoint, from the saved state and the model that clients train from."""
    if config.server_optimizer != SCHEDULE_FREE:
        return vector
    borders = borders_of(config.fragments, vector.size)
    optimizer = ServerOptimizer(config, int(_read(state)["parameters"]), borders)
    optimizer.restore(state)
    return optimizer.average(vector)
