"""Where a run takes place: its clients on this machine, or its SuperLink.

It is kept in the run's folder, beside the keys of its clients, so that a resume needs no options for it.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fedgc.cli.clients import NONE, ClientSettings
from fedgc.errors import EdgeFailed
from fedgc.store.engine import default_path, runs_folder

FILE: Final = "place.json"
SETTINGS: Final = (str, int, float)  # what the value of a client's setting may be


@dataclass(frozen=True, slots=True)
class RunPlace:
    """So many local clients, some with settings of their own, or a SuperLink; by default nothing is said."""

    clients: int | None = None
    superlink: str | None = None
    own: ClientSettings = field(default_factory=lambda: NONE)  # the clients' own settings, by name

    def __bool__(self) -> bool:
        """Whether anything is said."""
        return self != RunPlace()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "RunPlace":
        """Check values that were kept; raise TypeError or AttributeError if they are no place."""
        found = cls(**values)
        settings = [each for own in found.own.values() for each in own.values()]
        if not (
            isinstance(found.clients, int | None)
            and isinstance(found.superlink, str | None)
            and all(isinstance(each, SETTINGS) for each in settings)
        ):
            raise TypeError("of another type")
        return found


def folder_of(run: str) -> Path:
    """Return the folder of what is kept here of a run, other than checkpoints."""
    return runs_folder("", os.environ) / run


def keys_of(run: str) -> Path:
    """Return the folder of the keys of the clients that are started here for a run."""
    return folder_of(run) / "keys"


def keys_of_queue() -> Path:
    """Return the folder of the keys of the clients that are started here for the runs of a queue."""
    return default_path(os.environ).parent / "queue" / "keys"


def keep_place(run: str, place: RunPlace) -> None:
    """Keep where a run takes place; where that cannot be written, a resume needs the options again."""
    path = folder_of(run) / FILE
    own = {name: dict(settings) for name, settings in place.own.items()}
    values = {"clients": place.clients, "superlink": place.superlink, "own": own}
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(values))
        part.replace(path)


def place_of(run: str) -> RunPlace:
    """Return where a run took place; nothing if that was not kept.

    Raises:
        EdgeFailed: The file is damaged.
    """
    path = folder_of(run) / FILE
    try:
        return RunPlace.of(json.loads(path.read_text()))
    except FileNotFoundError:
        return RunPlace()
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise EdgeFailed(
            f"{path}: saw {type(error).__name__}, needed the place of run {run}; give --clients, --client or "
            "--superlink"
        ) from error
