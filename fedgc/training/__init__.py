"""Local training: the engine of a client, and the server's optimizer and evaluation.

The names are imported when they are first used: tasks can be named without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from fedgc.training.cache_files import CacheFiles
    from fedgc.training.engine import Engine, Order, Start
    from fedgc.training.flat import FlatModel, Vector
    from fedgc.training.server_model import CommonModel
    from fedgc.training.server_optimizer import ServerOptimizer

_HOMES: Final = {
    "CacheFiles": "cache_files",
    "CommonModel": "server_model",
    "Engine": "engine",
    "FlatModel": "flat",
    "Order": "engine",
    "ServerOptimizer": "server_optimizer",
    "Start": "engine",
    "Vector": "flat",
}

__all__ = ["CacheFiles", "CommonModel", "Engine", "FlatModel", "Order", "ServerOptimizer", "Start", "Vector"]


def __getattr__(name: str) -> Any:  # noqa: ANN401  a module's attributes are of any type
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"fedgc.training.{_HOMES[name]}"), name)
