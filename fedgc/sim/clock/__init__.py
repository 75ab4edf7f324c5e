"""The virtual clock: runs `Round` and `Run` with modelled clients."""

from fedgc.sim.clock.client_model import ClientModel
from fedgc.sim.clock.clock import VirtualClock
from fedgc.sim.clock.conditions import NEVER, Conditions, working
from fedgc.sim.clock.interfaces import FLOAT_BYTES, Failure, Finding, Span, Terms
from fedgc.sim.clock.models import MODELS, Scenario
from fedgc.sim.clock.server_link import UNCONTENDED, Line, Pipe, arrivals_s

__all__ = [
    "Span",
    "Conditions",
    "working",
    "NEVER",
    "MODELS",
    "Scenario",
    "Line",
    "UNCONTENDED",
    "Pipe",
    "arrivals_s",
    "VirtualClock",
    "Terms",
    "FLOAT_BYTES",
    "Failure",
    "Finding",
    "ClientModel",
]
