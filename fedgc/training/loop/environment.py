"""What a client tells its training script in the environment: where it listens, and the settings."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed

VARIABLE: Final = "FEDGC_CLIENT"


@dataclass(frozen=True, slots=True)
class ScriptEnvironment:
    """The client's part of a script's environment."""

    socket: str  # path of the client's local socket
    secret: str  # without which the client answers nothing
    settings: Mapping[str, str | int | float]  # the run's table of settings
    client: Mapping[str, str | int | float]  # the client's own settings: its node config
    state: str  # folder in which private tensors and the optimizer's state outlive the script
    pace_s: float = 0.0  # least time of a step

    def write(self) -> dict[str, str]:
        """Return the variable to be added to an environment."""
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> "ScriptEnvironment | None":
        """Return what the client has told, or None if no client has started this process.

        Raises:
            EdgeFailed: The variable is there and cannot be read.
        """
        text = environment.get(VARIABLE)
        if not text:
            return None
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError, RecursionError) as error:
            raise EdgeFailed(f"{VARIABLE}: saw {text[:40]!r}, which no client of fedgc writes") from error

    def config(self) -> RunConfig:
        """Return the run's settings."""
        return RunConfig.read(self.settings)

    @property
    def folder(self) -> Path:
        """The folder for what outlives the script."""
        return Path(self.state)
