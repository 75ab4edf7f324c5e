"""Record-level differential privacy of a client's local steps (DP-SGD: Abadi et al., arXiv 1607.00133).

    gradient = (sum over sampled records r of  min(1, clip / |g_r|) g_r  +  N(0, (noise * clip)^2)) / L

The conventions are those of Opacus: each record is in a step with probability `rate` = batch-size / records,
independently of others and of other steps (Poisson sampling), and L = rate * records is fixed. Sampling and
noise are secret, so each step counts with the amplification of the sampling (`secagg.renyi`). What the
optimizer, the momentum and the gate make of such gradients costs nothing more, for any number of steps. The
loss is no such thing: it is never reported.

Data sets are adjacent if one record counts nothing in one of them (zero-out adjacency, Kairouz et al., arXiv
2103.00039), so the number of records is no secret.

A step is charged when it is done, whatever becomes of it. The charges are written before anything that
depends on them can leave the client.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import numpy as np
import torch
from torch import Tensor

from fedgc.config import AUTO, RunConfig
from fedgc.errors import EdgeFailed
from fedgc.secagg.keys import KEY_BYTES
from fedgc.secagg.keystream import RandomBytes
from fedgc.secagg.privacy import NOISE_BLOCK, Gaussian, uniform
from fedgc.secagg.renyi import Release, epsilon_of_releases, noise_for_releases, text_above, with_release
from fedgc.training.account_file import AccountFile
from fedgc.training.data import Rows, Samples
from fedgc.training.devices import to_device
from fedgc.training.record_gradients import RecordGradients

Forbids = Callable[[tuple[Release, ...]], str]
ROUNDING: Final = 1 + 1e-9  # of an epsilon


class RecordPrivacy:
    """Makes the noised gradients of a client's steps, and accounts for them."""

    def __init__(
        self,
        config: RunConfig,
        gradients: RecordGradients,
        entropy: Callable[[int], bytes],
        account: AccountFile | None = None,
    ) -> None:
        """`entropy` returns so many secret random bytes; `account` has what earlier processes have spent.

        Raises:
            EdgeFailed: What is spent cannot be read.
        """
        self._config, self._gradients, self._account = config, gradients, account
        self._sampling = RandomBytes(entropy(KEY_BYTES))
        self._gaussian = Gaussian(1.0, entropy(KEY_BYTES))
        self._spent: tuple[Release, ...]
        self.undelivered: tuple[Release, ...]  # not in the log of the site's policy yet, of any process
        self._spent, self.undelivered = account.read() if account is not None else ((), ())
        self._unwritten = False
        self._forbids: Forbids = lambda _: ""
        self._noise, self._rate = self._spent[-1][:2] if self._spent else (0.0, 0.0)

    # ---- steps

    def begin(self, records: int) -> None:
        """Fix the sampling rate and the noise for steps on so many records."""
        config = self._config
        self._rate = min(1.0, config.batch_size / records)
        if config.privacy_noise != AUTO:
            self._noise = float(config.privacy_noise)
            return
        steps = config.rounds * config.round_steps
        self._noise = noise_for_releases(config.privacy_epsilon, self._rate, steps, config.privacy_delta)

    def sample(self, records: int) -> Rows:
        """Return the rows of one step: each with probability `rate`."""
        found = [
            first + np.flatnonzero(uniform(self._sampling, min(NOISE_BLOCK, records - first)) < self._rate)
            for first in range(0, records, NOISE_BLOCK)
        ]
        return np.concatenate(found).astype(np.int64)

    def set_gradients(self, samples: Samples, trained: Sequence[Tensor]) -> None:
        """Set the `grad` of the trained parameters to the noised gradient of a step, and charge the step."""
        rows = self.sample(len(samples))
        self._charge()
        if rows.size:
            self._gradients.add(samples.batch(rows))
        expected = self._rate * len(samples)
        for each in trained:
            noise = self._noise_like(each)
            each.grad = noise if not rows.size or each.grad is None else each.grad.add_(noise)
            each.grad.div_(expected)

    def _noise_like(self, tensor: Tensor) -> Tensor:
        deviation, made = self._noise * self._config.privacy_clip, np.empty(tensor.numel(), np.float32)
        for first in range(0, made.size, NOISE_BLOCK):
            part = made[first : first + NOISE_BLOCK]
            part[...] = deviation * self._gaussian.next(part.size)
        return to_device(torch.from_numpy(made), tensor.device).view_as(tensor)

    # ---- what is spent

    @property
    def epsilon(self) -> float:
        """The epsilon of all steps of the run."""
        return epsilon_of_releases(self._spent, self._config.privacy_delta)

    @property
    def ending(self) -> str:
        """Why no step can follow; empty if one can."""
        most = self._config.privacy_epsilon
        if not self._rate:
            return ""
        step = (self._noise, self._rate, 1)
        if forbidden := self._forbids(with_release(self.undelivered, step)):
            return forbidden
        if not most:
            return ""
        one = with_release(self._spent, step)
        after = epsilon_of_releases(one, self._config.privacy_delta)
        if after <= most * ROUNDING:
            return ""
        return (
            f"the privacy budget of this client's records is spent: with one more step epsilon would be "
            f"{text_above(after, most)}, needed at most {most:g} (privacy.epsilon)"
        )

    def keep(self) -> None:
        """Write what is spent; raise EdgeFailed if that fails, and then nothing may leave."""
        if self._unwritten and self._account is not None:
            self._account.put(self._spent, self.undelivered)
        self._unwritten = False

    def heed(self, forbids: Forbids) -> None:
        """Do no step for which this function, given all undelivered steps with it, returns a reason."""
        self._forbids = forbids

    def deliver(self) -> None:
        """Take note that the log has all steps so far."""
        self.undelivered, self._unwritten = (), True
        with suppress(EdgeFailed):  # a later process enters them once more
            self.keep()

    def _charge(self) -> None:
        step = (self._noise, self._rate, 1)
        self._spent, self._unwritten = with_release(self._spent, step), True
        self.undelivered = with_release(self.undelivered, step)
