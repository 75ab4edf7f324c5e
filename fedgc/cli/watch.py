"""`fedgc watch`: the page over the store, until Ctrl-C; or one look at it as JSON.

May import: web, store; errors.
"""

import json
import sys
from dataclasses import replace

from fedgc.errors import EdgeFailed
from fedgc.store.database import Store
from fedgc.store.reading import LATEST
from fedgc.web.check import check
from fedgc.web.serve import Place, Served


def watch(place: Place, run: str | None) -> None:
    """Serve the page until it is ended."""
    with Store.open(reads_only=True) as store:
        shown = store.run(run or LATEST).run
        served = Served(store, place, run or LATEST)
        sys.stdout.write(f"{shown} of {store.name} at {served.url} (Ctrl-C ends it)\n")
        sys.stdout.flush()
        served.forever()


def look_at_it(place: Place, run: str | None) -> None:
    """Serve the page to ourselves, on a free port, and print what was found."""
    with Store.open(reads_only=True) as store:
        store.run(run or LATEST)
        with Served(store, replace(place, port=0), run or LATEST).beside() as served:
            found = check(served)
    sys.stdout.write(json.dumps(found.figures(), indent=1) + "\n")
    if found.faults:
        raise EdgeFailed(f"the page: {'; '.join(found.faults)}")
