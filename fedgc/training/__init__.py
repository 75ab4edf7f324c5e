"""Local training on a client, and the server's optimizer and evaluation.

The names are imported at their first use: `fedgc.training.tasks` alone must not load torch.
"""

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fedgc.training.cache_files import CacheFiles
    from fedgc.training.engine import Engine, Order, Start
    from fedgc.training.flat import FlatModel, Vector
    from fedgc.training.make import new_engine
    from fedgc.training.server_model import CommonModel
    from fedgc.training.server_optimizer import ServerOptimizer

__all__ = [
    "CommonModel", "Engine", "FlatModel", "CacheFiles", "Order", "ServerOptimizer", "Start", "Vector",
    "new_engine",
]  # fmt: skip

_MODULES: Final = MappingProxyType(
    {
        "CacheFiles": "cache_files",
        "CommonModel": "server_model",
        "Engine": "engine",
        "FlatModel": "flat",
        "Order": "engine",
        "new_engine": "make",
        "ServerOptimizer": "server_optimizer",
        "Start": "engine",
        "Vector": "flat",
    }
)

if not TYPE_CHECKING:  # a type checker must not take every name for one that exists

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
