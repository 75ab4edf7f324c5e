"""Local training: the engine of a device, and the server's optimiser and evaluation."""

from fedgc.train.common import CommonModel
from fedgc.train.engine import Engine, Order, Start
from fedgc.train.flat import FlatModel, Vector
from fedgc.train.lasting import Lasting
from fedgc.train.optimiser import ServerOptimiser
from fedgc.train.stacked import Stacked

__all__ = [
    "CommonModel", "Engine", "FlatModel", "Lasting", "Order", "ServerOptimiser", "Stacked", "Start", "Vector",
]  # fmt: skip
