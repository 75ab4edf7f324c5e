"""Local training: the engine of a client, and the server's optimizer and evaluation.

`stacked` is not among them: it trains many clients in one process, which only the simulator does.
"""

from fedgc.training.cache_files import CacheFiles
from fedgc.training.engine import Engine, Order, Start
from fedgc.training.flat import FlatModel, Vector
from fedgc.training.server_model import CommonModel
from fedgc.training.server_optimizer import ServerOptimizer

__all__ = [
    "CommonModel", "Engine", "FlatModel", "CacheFiles", "Order", "ServerOptimizer", "Start", "Vector",
]  # fmt: skip
