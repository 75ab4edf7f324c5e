"""fedgc on Flower: the strategy, the two apps, and the sessions that connect them.

The names are looked up when they are first used: whoever starts a local federation (local.py) or speaks
the wire protocol alone needs neither Flower nor torch.

A process is started for every session and every packet, and most of what it does is to import torch. What is
imported stays: to look for garbage in it, again and again as it grows and once more at the end, is a third
of that time.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
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
    with _no_collections():
        return getattr(import_module(f"fedgc.flower.{_HOMES[name]}"), name)


@contextmanager
def _no_collections() -> Iterator[None]:
    """Collect no garbage, and leave what is there by the end out of every later collection."""
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collected:
            gc.enable()
