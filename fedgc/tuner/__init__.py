"""The tuner: chooses replicas, blocks, loads and deadline from each client's measured speed, with reasons."""

from fedgc.tuner.advice import Advice, advise
from fedgc.tuner.band import Band, band_of
from fedgc.tuner.belief import believe
from fedgc.tuner.choose import Choice, choose
from fedgc.tuner.counted import chances, chunk_weights
from fedgc.tuner.history import ClientHistory, nothing, recall, remember, robust
from fedgc.tuner.planner import Tuner
from fedgc.tuner.review import due, review
from fedgc.tuner.trial import Question, Setting
from fedgc.tuner.wanted import clients_wanted

__all__ = [
    "Tuner",
    "ClientHistory",
    "recall",
    "remember",
    "nothing",
    "robust",
    "Band",
    "band_of",
    "believe",
    "Setting",
    "Question",
    "Choice",
    "choose",
    "review",
    "due",
    "Advice",
    "advise",
    "clients_wanted",
    "chances",
    "chunk_weights",
]
