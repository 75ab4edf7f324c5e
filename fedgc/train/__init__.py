"""Local training: the engine of a device, and the server's optimiser and evaluation.

`stacked` is not among them: it trains many devices in one process, which only the simulator does.
"""

from fedgc.train.common import CommonModel
from fedgc.train.engine import Engine, Order, Start
from fedgc.train.flat import FlatModel, Vector
from fedgc.train.lasting import Lasting
from fedgc.train.optimiser import ServerOptimiser

__all__ = [
    "CommonModel", "Engine", "FlatModel", "Lasting", "Order", "ServerOptimiser", "Start", "Vector",
]  # fmt: skip
