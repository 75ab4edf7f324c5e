"""The server's optimizer: what the mean update does to the common model.

Any of five rules of `torch.optim` takes the mean update as the gradient of the trainable parameters (Reddi
et al., "Adaptive federated optimization", 2021); SGD with rate 1 is plain averaging. The buffers behind
them are no optimizer's business: the mean update is subtracted.

SGD without momentum is a subtraction that remembers nothing, and is done without torch: the first optimizer
that a process makes has torch's compiler imported, which is a second before any client is asked to join.

Every other rule works number by number, so the step is taken in parts, each a parameter of its own,
and the new model is made where the mean update stood: a model stands in memory twice, beside the rule's own
state, and no temporary of torch's is larger than a part.

Its state is bytes of tensors and numbers, read back by torch's restricted loader: nothing in a checkpoint
can run code.
"""

from collections.abc import Callable, Mapping
from io import BytesIO
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import torch

from fedgc.config import RunConfig
from fedgc.errors import BadSetting, EdgeFailed
from fedgc.training.flat import Vector, check_vector

RULES: Final[Mapping[str, Callable[..., torch.optim.Optimizer]]] = MappingProxyType(
    {
        "sgd": torch.optim.SGD,
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "adagrad": torch.optim.Adagrad,
        "rmsprop": torch.optim.RMSprop,
    }
)
PART: Final = 1 << 20  # numbers of one step


class ServerOptimizer:
    """The rule that the settings name, over a vector whose first `parameters` numbers are trained.

    >>> averaging = ServerOptimizer(RunConfig(), parameters=1)
    >>> averaging.apply(np.float32([3, 5]), np.float32([1, 2])).tolist()
    [2.0, 3.0]
    """

    def __init__(self, config: RunConfig, parameters: int) -> None:
        rule = config.server_optimizer
        options = {"lr": config.server_learning_rate}
        if config.server_momentum:
            if rule != "sgd":
                raise BadSetting(f"setting optimizer.server-momentum: saw it with {rule}, needed sgd or 0")
            options["momentum"] = config.server_momentum
        self._rule, self._options = rule, options
        self._rate = config.server_learning_rate
        self._parameters = parameters
        plain = rule == "sgd" and not config.server_momentum
        self._parts = [
            (slice(first, first + PART), torch.zeros(min(PART, parameters - first), requires_grad=True))
            for first in range(0, 0 if plain else parameters, PART)
        ]
        self._optimizer = None if plain else RULES[rule]([part for _, part in self._parts], **options)
        self._empty()

    def apply(self, vector: Vector, mean_update: Vector) -> Vector:
        """Return the model after `vector`; raise BadVector where either is not what it must be.

        `mean_update` is used up: the new model is made of it.
        """
        check_vector(vector, max(vector.size, self._parameters))
        check_vector(mean_update, vector.size)
        if self._optimizer is None:
            self._average(vector, mean_update)
        else:
            self._step(self._optimizer, vector, mean_update)
        check_vector(mean_update, vector.size)
        return mean_update

    def _average(self, vector: Vector, mean_update: Vector) -> None:
        trained = mean_update[: self._parameters]
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is named by the caller
            np.multiply(trained, np.float32(self._rate), out=trained)
            np.subtract(vector, mean_update, out=mean_update)

    def _step(self, optimizer: torch.optim.Optimizer, vector: Vector, mean_update: Vector) -> None:
        trained, buffers = np.split(mean_update, [self._parameters])
        for numbers, part in self._parts:  # those without a gradient are left alone by torch
            part.data = torch.tensor(vector[: self._parameters][numbers])
            part.grad = torch.from_numpy(trained[numbers])
            optimizer.step()
            trained[numbers] = part.detach().numpy()
            self._empty()
        with np.errstate(over="ignore"):
            np.subtract(vector[self._parameters :], buffers, out=buffers)

    def _empty(self) -> None:
        for _, part in self._parts:
            part.grad, part.data = None, torch.zeros(0)

    def state(self) -> bytes:
        """Return what `restore` takes to go on as if nothing had happened."""
        written = BytesIO()
        own = {"state": {}} if self._optimizer is None else self._optimizer.state_dict()
        kept = {"rule": self._rule, "parameters": self._parameters, "state": own}
        torch.save(kept, written)
        return written.getvalue()

    def restore(self, state: bytes) -> None:
        """Go on from this state; raise BadSetting where it is of another rule or model."""
        kept = _read(state)
        seen = f"{kept['rule']} over {kept['parameters']} parameters"
        needed = f"{self._rule} over {self._parameters} parameters"
        if seen != needed:
            raise BadSetting(f"server optimizer: the checkpoint is of {seen}, needed {needed}")
        if self._optimizer is not None:
            groups = self._optimizer.state_dict()["param_groups"]  # the run's settings, not the checkpoint's
            self._take_up(self._optimizer, {**kept["state"], "param_groups": groups})

    def _take_up(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Load the state of every part; torch looks at neither names nor sizes before its next step."""
        kept, names = state.get("state"), self._names()
        sizes = {
            number: min(PART, self._parameters - each.start) for number, (each, _) in enumerate(self._parts)
        }
        for number, each in kept.items() if isinstance(kept, dict) else [("all", None)]:
            if number not in sizes or not _fits(each, names, sizes[number]):
                raise EdgeFailed(
                    f"server optimizer: saw a state of part {number!r} of another form, "
                    f"needed {', '.join(sorted(names))} for any of {len(sizes)} parts"
                )
        optimizer.load_state_dict({**state, "state": kept})

    def _names(self) -> set[str]:
        """Return what the rule remembers of a parameter, by letting it step one."""
        tried = torch.zeros(1, requires_grad=True)
        tried.grad = torch.ones(1)
        probe = RULES[self._rule]([tried], **self._options)
        probe.step()
        return set(probe.state[tried])


def _fits(remembered: object, names: set[str], size: int) -> bool:
    """Whether this is what a rule remembers of a part: each one number, as many as the part has, or none."""
    if not isinstance(remembered, dict) or remembered.keys() != names:
        return False
    tensors = [value for value in remembered.values() if value is not None]
    return all(isinstance(each, torch.Tensor) and each.numel() in (1, size) for each in tensors)


def _read(state: bytes) -> dict[str, Any]:
    try:
        kept = torch.load(BytesIO(state), weights_only=True)
    except Exception as error:  # torch raises half a dozen kinds for bytes that are not a checkpoint
        said = str(error).split("\n")[0]
        raise EdgeFailed(
            f"server optimizer: its {len(state)} bytes of state cannot be read: {said}"
        ) from error
    if not isinstance(kept, dict) or kept.keys() != {"rule", "parameters", "state"}:
        raise EdgeFailed(f"server optimizer: saw a {type(kept).__name__} of another form as its state")
    return kept
