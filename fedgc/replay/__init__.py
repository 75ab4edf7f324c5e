"""Replay: a virtual clock over `round` and `run`, with devices whose times come from arrays or models."""

from fedgc.replay.conditions import NEVER, Conditions, working
from fedgc.replay.modelled import Modelled, Replayed, discarded, replay, timeline
from fedgc.replay.models import MODELS, Model, Weather
from fedgc.replay.pipe import UNCONTENDED, Line, Pipe, all_arrivals_s, arrivals_s
from fedgc.replay.setting import Fate, Finding, Span, Terms, Witness
from fedgc.replay.under import Under
from fedgc.replay.world import World

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
    "Weather",
    "Line",
    "UNCONTENDED",
    "Pipe",
    "arrivals_s",
    "all_arrivals_s",
    "World",
    "Terms",
    "Fate",
    "Witness",
    "Finding",
    "Under",
]
