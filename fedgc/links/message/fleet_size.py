"""How many clients there are in all, where that is known: a federation of one machine tells its servers."""

from collections.abc import Mapping
from typing import Final

VARIABLE: Final = "FEDGC_FLEET"  # in the environment of the SuperLink and its ServerApps


def fleet_size(environment: Mapping[str, str]) -> int | None:
    """Return the number of clients that can come; None if it is not known.

    >>> fleet_size({"FEDGC_FLEET": "4"}), fleet_size({})
    (4, None)
    """
    said = environment.get(VARIABLE, "")
    return int(said) if said.isdecimal() else None
