"""What a client tells its training script in the environment: where it listens, and the settings."""

import json
import multiprocessing
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed

VARIABLE: Final = "FEDGC_CLIENT"
ANEW: Final = (
    "fedgc: saw a step of a process that imports the script anew, needed `if __name__ == '__main__':`"
)


@dataclass(frozen=True, slots=True)
class ScriptEnvironment:
    """The client's part of a script's environment."""

    socket: str  # path of the client's local socket
    secret: str  # without which the client answers nothing
    settings: Mapping[str, str | int | float]  # the run's table of settings
    client: Mapping[str, str | int | float]  # the client's own settings: its node config
    state: str  # folder in which private tensors and the optimizer's state outlive the script
    pace_s: float = 0.0  # least time of a step
    joined: int = 0  # the process that has joined: those that it starts take no part

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

    def join(self) -> None:
        """Tell the processes that this one starts that it takes part, and not they."""
        os.environ.update(replace(self, joined=os.getpid()).write())

    @property
    def is_inherited(self) -> bool:
        """Whether a process that takes part has started this one, as a program and not as a worker."""
        return self.joined not in (0, os.getpid()) and not imports_anew()

    def config(self) -> RunConfig:
        """Return the run's settings."""
        return RunConfig.read(self.settings)

    @property
    def folder(self) -> Path:
        """The folder for what outlives the script."""
        return Path(self.state)


def client_settings() -> Mapping[str, str | int | float]:
    """Return this client's own settings (its node config) in a training script, also before `join`.

    A script whose model depends on its data, for example on the number of columns, finds its data by them.
    After `join` they are `fed.client` too. Outside a federation there are none.

    Raises:
        EdgeFailed: The environment of a client is there and cannot be read.

    Example:
        data = load(fedgc.client_settings().get("data", "readings.csv"))
        model = network(data.columns)
        fed = fedgc.join(model)
    """
    environment = ScriptEnvironment.read(os.environ)
    return MappingProxyType(dict(environment.client) if environment else {})


def imports_anew() -> bool:
    """Whether multiprocessing has spawned this process, which is about to import the script."""
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))
