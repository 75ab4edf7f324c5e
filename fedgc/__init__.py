"""fedgc: federated training on Flower for clients of uneven, changing speed.

The public API. A name is imported at its first use, so `import fedgc` loads neither torch nor Flower.

| name | what it is |
|---|---|
| `Task` | model, data, loss and evaluation of a training task |
| `over` | makes a `Task` from one dataset that all clients can read |
| `site_data` | the data of a site, which travels to its clients in chunks |
| `from_lightning` | makes a `Task` from a LightningModule |
| `join` | lets a training script of your own take part |
| `client_settings` | a client's own settings, before a script makes its model |
| `hf.Callback`, `lightning.Callback` | let a Trainer of transformers or Lightning take part |
| `RunConfig` | the settings of a run |
| `server_app`, `client_app` | the ServerApp and the ClientApp of a Flower app |
| `FedGC` | the Flower strategy, for a ServerApp of your own |

Example:
    >>> import fedgc
    >>> fedgc.RunConfig(rounds=3).rounds
    3
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fedgc import hf as hf
    from fedgc import lightning as lightning
    from fedgc.config import RunConfig
    from fedgc.datastore.site_data import site_data
    from fedgc.flower.client import client_app
    from fedgc.flower.server import server_app
    from fedgc.flower.strategy import FedGC
    from fedgc.training.loop.environment import client_settings
    from fedgc.training.loop.training_loop import join
    from fedgc.training.tasks.dataset import over
    from fedgc.training.tasks.lightning import from_lightning
    from fedgc.training.tasks.task import Task

    __version__: str

__all__ = [
    "Task",
    "over",
    "site_data",
    "from_lightning",
    "join",
    "client_settings",
    "RunConfig",
    "FedGC",
    "server_app",
    "client_app",
    "__version__",
]

# No key may be the name of a submodule of fedgc: importing the submodule would replace the name.
_MODULES: Final = MappingProxyType(
    {
        "Task": "fedgc.training.tasks.task",
        "over": "fedgc.training.tasks.dataset",
        "site_data": "fedgc.datastore.site_data",
        "from_lightning": "fedgc.training.tasks.lightning",
        "RunConfig": "fedgc.config",
        "FedGC": "fedgc.flower.strategy",
        "join": "fedgc.training.loop.training_loop",
        "client_settings": "fedgc.training.loop.environment",
        "server_app": "fedgc.flower.server",
        "client_app": "fedgc.flower.client",
    }
)

# Submodules that are imported at their first use. Each imports a package that fedgc does not need: they are
# not in `__all__`.
_SUBMODULES: Final = frozenset({"hf", "lightning"})

if not TYPE_CHECKING:  # a type checker must not take every name for one that exists

    def __getattr__(name: str) -> object:
        if name == "__version__":
            from importlib.metadata import version

            return version("fedgc")
        if name in _SUBMODULES:
            return import_module(f"fedgc.{name}")
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with _frozen_garbage_collection():
            value = getattr(import_module(_MODULES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES})


@contextmanager
def _frozen_garbage_collection() -> Iterator[None]:
    """Import without garbage collection, and exclude the imported objects from later collections.

    Flower starts a process for each session and each message, and importing torch is most of its work.
    Collections during the import, and one more at exit, take a third of that time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
