"""A run as a server makes it: planned by the tuner."""

from fedgc.config import RunConfig
from fedgc.history import Speeds
from fedgc.run.machine import Run, RunParts
from fedgc.tuner import Tuner


def tuned_run(
    config: RunConfig,
    *,
    speeds: Speeds | None = None,
    key_agreement=None,
    site=None,
    fleet: int | None = None,
    **more: object,
) -> Run:
    """Return a run whose planner is the tuner, with the same history."""
    told = speeds.recent if speeds else ()
    parts = RunParts(Tuner(config, told), key_agreement, site=site, fleet=fleet)
    return Run(config, speeds=speeds, parts=parts, **more)
