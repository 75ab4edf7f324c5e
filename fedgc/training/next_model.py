"""The server's step from one common model to the next, and the change that clients are sent."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from fedgc.codecs import EXACT, rounding
from fedgc.codecs.model_change import ModelChange, encoded_change
from fedgc.config import RunConfig
from fedgc.fragments import borders_of, buffers_in, fragment_of
from fedgc.training.flat import Vector
from fedgc.training.server_optimizer import ServerOptimizer

SERVER: Final = "server"  # seeds the rounding of changes


class NextModel:
    """Applies mean updates by the server's optimizer.

    With a download codec the new model is the one that clients decode. What its encoding leaves out of a step
    is added to the next step of the same part (error feedback: Karimireddy et al., arXiv 1901.09847).
    """

    def __init__(
        self, config: RunConfig, parameters: int, size: int, variances: Sequence[slice] = ()
    ) -> None:
        """The first `parameters` of `size` numbers are trained; `variances` must not become negative."""
        self._wire, self._fragments = config.download_codec, config.fragments
        self._optimizer = ServerOptimizer(config, parameters, borders_of(config.fragments, size), variances)
        self._size, self._buffers = size, size - parameters

    def state(self) -> bytes:
        """Return the serialized state, for `restore`."""
        return self._optimizer.state()

    def restore(self, state: bytes) -> None:
        """Restore a saved state; raise BadSetting if it is of another optimizer or model."""
        self._optimizer.restore(state)
        residual = self._optimizer.residual
        if self._wire == EXACT or (residual is not None and residual.size != self._size):
            self._optimizer.residual = None

    def apply(self, model: Vector, mean: Vector, version: int) -> tuple[Vector, ModelChange | None]:
        """Return the model after `version`, and its change; no change if clients need all of the new model.

        `mean` is the mean update of the part that the round has exchanged. It is overwritten.

        Raises:
            BadVector: An argument or the result is not a finite vector.
        """
        part = fragment_of(version, self._fragments, self._size)
        new = self._optimizer.apply(model, mean, part)
        if self._wire != EXACT:
            return self._encoded(model, new, part, version)
        if new.size == model.size:
            return new, None
        whole = model.copy()
        whole[part] = new
        return whole, ModelChange(part, EXACT, whole[part])

    def average(self, model: Vector) -> Vector:
        """Return the model to use when clients train from this one."""
        return self._optimizer.average(model)

    def _encoded(self, model: Vector, new: Vector, part: slice, version: int) -> tuple[Vector, ModelChange]:
        residual = self._optimizer.residual
        if residual is None:
            residual = self._optimizer.residual = np.zeros(self._size, np.float32)
        step = residual[part]
        step += np.subtract(new, model[part], out=new)
        exact, chance = buffers_in(part, self._size, self._buffers), rounding(version, 0, SERVER)
        change, decoded = encoded_change(model, step, part, self._wire, chance, exact)
        return decoded, change
