"""`fedgc watch`: serve the page over the store until Ctrl-C, or check it once with a JSON report."""

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from fedgc.errors import EdgeFailed, Unusable
from fedgc.store.database import Store
from fedgc.store.reading import LATEST
from fedgc.tuner.wanted import CLIENT_GAIN
from fedgc.web.check import check
from fedgc.web.serve import Place, Served

TOKEN_IN: Final = "FEDGC_TOKEN"  # noqa: S105  the variable's name
NAMED: Final = "env:"


def token_of(given: str | None, environment: Mapping[str, str]) -> str | None:
    """Return the token that `--token` names (env:NAME or a file), else the one in FEDGC_TOKEN.

    A token is never on the command line itself, which every user of the machine can read.
    """
    if given is None:
        return environment.get(TOKEN_IN)
    if given.startswith(NAMED):
        name = given.removeprefix(NAMED)
        if name not in environment:
            raise Unusable(f"--token: saw no variable {name!r}, needed one that holds the token")
        return environment[name]
    try:
        return Path(given).read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not ASCII"
        raise Unusable(
            f"--token: needed env:NAME or a file that holds the token, saw none of that name ({reason})"
        ) from error


def watch(place: Place, run: str | None, client_gain: float | None) -> None:
    """Serve the page until it is interrupted."""
    with Store.open(reads_only=True) as store:
        shown = store.run(run or LATEST).run
        gain = CLIENT_GAIN if client_gain is None else client_gain
        served = Served(store, place, run or LATEST, gain)
        asks = "it asks for your token, once in the address as ?token=TOKEN; " if place.token else ""
        sys.stdout.write(f"{shown} of {store.name} at {served.url} ({asks}Ctrl-C ends it)\n")
        sys.stdout.flush()
        served.forever()


def check_page(place: Place, run: str | None) -> None:
    """Serve the page on a free port, check it, and print the results."""
    with Store.open(reads_only=True) as store:
        store.run(run or LATEST)
        with Served(store, replace(place, port=0), run or LATEST).beside() as served:
            found = check(served)
    sys.stdout.write(json.dumps(found.figures(), indent=1) + "\n")
    if found.faults:
        raise EdgeFailed(f"the page: {'; '.join(found.faults)}")
