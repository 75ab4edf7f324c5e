"""The inputs of a run's driver."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from fedgc.config import RunConfig
from fedgc.flower.sink import Sink
from fedgc.flower.site import GatewayLine
from fedgc.flower.validation import Pin
from fedgc.history import KnownBest, Speeds
from fedgc.large_vectors import Scratch
from fedgc.links.pieces import Vector
from fedgc.round.masked.key_agreement import KeyAgreement
from fedgc.secagg import Federation, Terms
from fedgc.secagg.keys import KEY_BYTES
from fedgc.store.checkpoint import Checkpoint
from fedgc.training import AnnouncedModel, CommonModel

KEYS_S: Final = 60.0  # timeout of each half of key agreement: one packet and its answer, over any link

ServerModel = CommonModel | AnnouncedModel
Save = Callable[[Checkpoint], None]
Evaluate = Callable[[int, Vector], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Job:
    """The inputs of a run."""

    model: ServerModel
    config: RunConfig
    sink: Sink
    speeds: Speeds
    save: Save | None = None
    resume: Checkpoint | None = None
    federation: Federation | None = None  # of a masked run
    name: str = ""  # of the run, on its links
    first: Vector | None = None  # the initial vector, in place of the model's own
    evaluate: Evaluate | None = None  # in place of the model's own
    pin: Pin | None = None  # keeps the checkpoint of the best model
    best: KnownBest | None = None  # before a resume
    gateway: GatewayLine | None = None  # of a site
    scratch: Scratch | None = None  # where a masked sum is, and models to go back to
    fleet: int | None = None  # clients that there are in all, if that is known

    def __post_init__(self) -> None:
        if self.resume is not None:
            self.resume.must_fit(self.model.layout.shapes)

    def key_agreement(self) -> KeyAgreement | None:
        """Return a new agreement on keys, if the run is masked."""
        if self.federation is None:
            return None
        terms = Terms(self.model.size, self.config.shape, bytes(KEY_BYTES))
        return KeyAgreement(self.federation, terms, KEYS_S, time.time, self.name)
