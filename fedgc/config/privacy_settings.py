"""The settings of client-level differential privacy, the table `[privacy]`."""

from dataclasses import dataclass

from fedgc.config.fields import AUTO, Auto, not_negative, positive, setting
from fedgc.config.settings import Settings


@dataclass(frozen=True, slots=True)
class PrivacySettings(Settings):
    """Every setting of a run: `Settings` and the table `[privacy]`."""

    privacy_epsilon: float = setting(
        "privacy.epsilon",
        0.0,
        "client-level differential privacy: the most that the run may spend; it ends before an exchange "
        "would spend more (0: no limit, and no privacy unless privacy.noise is a number)",
        not_negative,
        "0 or more",
    )
    privacy_noise: float | Auto = setting(
        "privacy.noise",
        AUTO,
        "standard deviation of the noise in the sum of the clients' updates, as a multiple of the clip; "
        "auto: the least with which the exchanges of the run spend privacy.epsilon",
        positive,
        "above 0, or auto",
    )
    privacy_delta: float = setting(
        "privacy.delta", 1e-6, "epsilon is stated at this delta", lambda v: 0 < v < 1, "above 0 and below 1"
    )
    privacy_clip: float = setting(
        "privacy.clip",
        1.0,
        "largest Euclidean norm with which the update of a client counts; with privacy.clip-quantile the "
        "first one",
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

        >>> PrivacySettings().is_private, PrivacySettings(privacy_noise=1.0).is_private
        (False, True)
        """
        return self.privacy_epsilon > 0 or self.privacy_noise != AUTO
