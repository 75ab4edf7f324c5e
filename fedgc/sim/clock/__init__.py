"""Replay: a virtual clock over `round` and `run`, with clients whose times come from arrays or models."""

from fedgc.sim.clock.client_model import ArrayClientModel
from fedgc.sim.clock.clock import VirtualClock
from fedgc.sim.clock.conditions import NEVER, Conditions, working
from fedgc.sim.clock.interfaces import Failure, Finding, Observer, Span, Terms
from fedgc.sim.clock.models import MODELS, Model, Scenario
from fedgc.sim.clock.one_round import Modelled, Replayed, discarded, replay, timeline
from fedgc.sim.clock.server_link import UNCONTENDED, Line, Pipe, all_arrivals_s, arrivals_s

__all__ = [
    "Modelled",
    "replay",
    "Replayed",
    "Span",
    "discarded",
    "timeline",
    "Conditions",
    "working",
    "NEVER",
    "MODELS",
    "Model",
    "Scenario",
    "Line",
    "UNCONTENDED",
    "Pipe",
    "arrivals_s",
    "all_arrivals_s",
    "VirtualClock",
    "Terms",
    "Failure",
    "Observer",
    "Finding",
    "ArrayClientModel",
]
