"""fedgc on Flower: the strategy, the two apps, and the sessions that connect them.

The names are looked up when they are first used: whoever starts a local federation (local.py) or speaks
the wire protocol alone needs neither Flower nor torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from fedgc.flower.client import client_app
    from fedgc.flower.server import server_app
    from fedgc.flower.strategy import FedGC

__all__ = ["FedGC", "client_app", "server_app"]

_HOMES: Final = {"FedGC": "strategy", "client_app": "client", "server_app": "server"}


def __getattr__(name: str) -> Any:  # noqa: ANN401  a module's attributes are of any type
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"fedgc.flower.{_HOMES[name]}"), name)
