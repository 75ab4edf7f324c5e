"""Local training on a client, and the server's optimizer and evaluation.

Names are imported at first use, because importing `fedgc.training.tasks` must not load torch.
"""

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fedgc.training.account_file import AccountFile
    from fedgc.training.cache_files import CacheFiles
    from fedgc.training.engine import Answer, Engine, Start
    from fedgc.training.flat import FlatModel, Vector
    from fedgc.training.make import new_engine, new_script_engine
    from fedgc.training.server_model import AnnouncedModel, CommonModel
    from fedgc.training.server_optimizer import ServerOptimizer

__all__ = [
    "AccountFile", "AnnouncedModel", "Answer", "CommonModel", "Engine", "FlatModel", "CacheFiles",
    "ServerOptimizer", "Start", "Vector", "new_engine", "new_script_engine",
]  # fmt: skip

_MODULES: Final = MappingProxyType(
    {
        "AccountFile": "account_file",
        "AnnouncedModel": "server_model",
        "Answer": "engine",
        "CacheFiles": "cache_files",
        "CommonModel": "server_model",
        "Engine": "engine",
        "FlatModel": "flat",
        "new_engine": "make",
        "new_script_engine": "make",
        "ServerOptimizer": "server_optimizer",
        "Start": "engine",
        "Vector": "flat",
    }
)

if not TYPE_CHECKING:  # hidden from type checkers, for which every name would exist

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
