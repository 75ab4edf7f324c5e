"""The federation of a masked run: read from its descriptor, whose privacy the settings of the run must fit.

The server calls it as well as each site, so that a run that all sites would refuse ends before it asks them.
"""

from pathlib import Path

from fedgc.config import RunConfig
from fedgc.errors import BadSetting
from fedgc.secagg import Federation
from fedgc.store.descriptor import read_descriptor


def federation_of(descriptor: Path, config: RunConfig) -> Federation:
    """Return the federation of a descriptor.

    Raises:
        BadSetting: A run with these settings would tell more than the privacy of its sites allows.
    """
    federation = read_descriptor(descriptor).federation
    if federation.privacy is not None and config.measure != "none":
        raise BadSetting(
            f"setting gate.name: saw {config.chosen_gate}, which weighs a {config.measure} of each client, "
            "needed one that weighs none: with privacy no norm may leave"
        )
    if federation.privacy is not None and config.protects_records:
        raise BadSetting(
            "setting privacy.unit: saw record, needed client under a descriptor with --site-clip, "
            "which protects all records of a site"
        )
    return federation
