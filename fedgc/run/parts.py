"""The parts of a run that differ from one kind of run to another."""

from dataclasses import dataclass, field

from fedgc.round.masked.key_agreement import KeyAgreement
from fedgc.run.planner import Planner
from fedgc.run.sample_pins import SamplePins
from fedgc.run.site_steps import SiteSteps


@dataclass(frozen=True, slots=True)
class RunParts:
    """Parts of a run: a planner if the settings leave the code open, a key agreement if masked.

    `site` holds what a consortium asks for, if this is the run of a site. `fleet` is the number of clients in
    all, if it is known. `buffers` is how many numbers of the model travel in float32.
    """

    planner: Planner | None = None
    key_agreement: KeyAgreement | None = None
    pins: SamplePins = field(default_factory=SamplePins)
    site: SiteSteps | None = None
    fleet: int | None = None
    buffers: int = 0
