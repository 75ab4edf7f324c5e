"""Simulation of rounds on modelled or recorded clients, for fedgc and other policies."""

from fedgc.sim.baselines import DropSlowest, OverSelection, PartialStragglers, Uncoded, WorkQueue
from fedgc.sim.catalogue import baselines, find, ours
from fedgc.sim.ours import Fedgc, Obeys
from fedgc.sim.policy import Policy, Result
from fedgc.sim.simulate import Prediction, Request, simulate
from fedgc.sim.timeline import page, png

__all__ = [
    "Request",
    "Prediction",
    "simulate",
    "page",
    "png",
    "Policy",
    "Result",
    "Fedgc",
    "Obeys",
    "Uncoded",
    "WorkQueue",
    "DropSlowest",
    "OverSelection",
    "PartialStragglers",
    "baselines",
    "ours",
    "find",
]
