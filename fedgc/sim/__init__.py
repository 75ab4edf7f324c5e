"""Simulation: real or modelled machines, every policy through one interface, and what came of it."""

from fedgc.sim.bound import FluidBound
from fedgc.sim.catalogue import bounds, find, original_codes, ours, rivals
from fedgc.sim.coded import BlockCoordinate, FractionalRepetition, FullWorkers, PartialStragglers
from fedgc.sim.ours import Fedgc, Obeys
from fedgc.sim.policy import Policy, Result
from fedgc.sim.simulate import Prediction, Request, simulate
from fedgc.sim.timeline import page, png
from fedgc.sim.uncoded import DropSlowest, FedBuff, OverSelection, Uncoded, WorkQueue

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
    "FedBuff",
    "FullWorkers",
    "FractionalRepetition",
    "BlockCoordinate",
    "PartialStragglers",
    "FluidBound",
    "rivals",
    "ours",
    "bounds",
    "original_codes",
    "find",
]
