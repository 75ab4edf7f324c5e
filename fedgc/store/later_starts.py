"""Later starts of an app: its second `FedGC.start` is a run of its own, RUN-2, its third RUN-3.

The settings of such a run have the name of the first one, RUN, with which the app is resumed.
"""

from collections.abc import Mapping
from itertools import count
from typing import Final

from fedgc.errors import Unusable
from fedgc.store.database import Store
from fedgc.store.views import Run

# Recorded with the settings: `rounds` of the app, if its `start` was given another number
SUBMITTED_ROUNDS: Final = "submitted-rounds"


def name_of_start(first: str, number: int) -> str:
    """Return the name of the run of a start.

    >>> name_of_start("ward", 1), name_of_start("ward", 2)
    ('ward', 'ward-2')
    """
    return first if number == 1 else f"{first}-{number}"


def later_starts(store: Store, run: Run) -> tuple[Run, ...]:
    """Return the runs of the starts that came after this run in its app."""
    first, found = run.first_start, []
    number = int(run.run[len(first) + 1 :] or 1)
    for each in count(number + 1):
        try:
            later = store.run(name_of_start(first, each))
        except Unusable:
            break
        if later.first_start != first:  # another run that happens to have this name
            break
        found.append(later)
    return tuple(found)


def last_start(store: Store, run: str) -> Run:
    """Return the run of the newest start of an app that a run belongs to; raise Unusable if it is unknown."""
    found = store.run(run)
    return (found, *later_starts(store, found))[-1]


def submitted(store: Store, run: Run) -> Mapping[str, int]:
    """Return what an app with several starts was submitted with, where its first start had something else."""
    rounds = run.settings.get(SUBMITTED_ROUNDS)
    return {"rounds": rounds} if isinstance(rounds, int) and later_starts(store, run) else {}
