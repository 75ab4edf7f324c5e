"""The settings of differential privacy, the table `[privacy]`."""

from dataclasses import dataclass
from typing import Literal

from fedgc.config.fields import AUTO, LARGEST_DELTA, Auto, not_negative, positive, setting


@dataclass(frozen=True)
class PrivacySettings:
    """What differential privacy protects, and how much of it is spent."""

    __slots__ = ()

    privacy_unit: Literal["client", "record"] = setting(
        "privacy.unit",
        "client",
        "what is protected; client: all that the updates of a client say, by noise of the server; record: "
        "each sample, by noise of its client in every local step",
    )
    privacy_epsilon: float = setting(
        "privacy.epsilon",
        0.0,
        "differential privacy: the most that the run may spend. It ends before an exchange would spend more; "
        "with privacy.unit = record a client leaves it before a local step would (0: no limit, and no "
        "privacy unless privacy.noise is a number)",
        not_negative,
        "0 or more",
    )
    privacy_noise: float | Auto = setting(
        "privacy.noise",
        AUTO,
        "standard deviation of the noise in a sum, as a multiple of the clip: of the clients' updates, or of "
        "the gradients of records; auto: the least with which the exchanges of the run, or the local steps "
        "of a client, spend privacy.epsilon",
        positive,
        "above 0, or auto",
    )
    privacy_delta: float = setting(
        "privacy.delta",
        1e-6,
        "epsilon is stated at this delta, which lies far below one part in the number protected",
        lambda v: 0 < v <= LARGEST_DELTA,
        f"above 0 and at most {LARGEST_DELTA}",
    )
    privacy_clip: float = setting(
        "privacy.clip",
        1.0,
        "largest Euclidean norm with which the update of a client, or the gradient of a record, counts; with "
        "privacy.clip-quantile the first one",
        positive,
        "above 0",
    )
    privacy_clip_quantile: float = setting(
        "privacy.clip-quantile",
        0.0,
        "share of the updates that the clip leaves as they are: the clip follows it (0: the clip is fixed)",
        lambda v: 0 <= v < 1,
        "0 or more, below 1",
    )

    @property
    def is_private(self) -> bool:
        """Whether the run has client-level differential privacy.

        >>> from fedgc.config import RunConfig
        >>> RunConfig().is_private, RunConfig(privacy_noise=1.0).is_private
        (False, True)
        """
        return self.privacy_unit == "client" and self._has_noise

    @property
    def protects_records(self) -> bool:
        """Whether the run has record-level differential privacy."""
        return self.privacy_unit == "record" and self._has_noise

    @property
    def _has_noise(self) -> bool:
        return self.privacy_epsilon > 0 or self.privacy_noise != AUTO
