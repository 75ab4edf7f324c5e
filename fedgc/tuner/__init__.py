"""The tuner: what each client could do yesterday decides what it is asked today, with reasons."""

from fedgc.tuner.advice import Advice, Cut, advise, advise_for
from fedgc.tuner.belief import Belief, believe
from fedgc.tuner.choose import Choice, Evidence, choose
from fedgc.tuner.counted import chances, chunk_weights
from fedgc.tuner.past import ClientHistory, nothing, recall, remember, robust
from fedgc.tuner.planner import Tuner
from fedgc.tuner.review import due, review
from fedgc.tuner.trial import Question, Setting

__all__ = [
    "Tuner",
    "ClientHistory",
    "recall",
    "remember",
    "nothing",
    "robust",
    "Belief",
    "believe",
    "Setting",
    "Question",
    "Choice",
    "Evidence",
    "choose",
    "review",
    "due",
    "Advice",
    "Cut",
    "advise",
    "advise_for",
    "chances",
    "chunk_weights",
]
