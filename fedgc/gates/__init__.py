"""Gates: whether a check is worth an exchange.

Clients work from a common model; every so many steps they say in a few numbers how far they have come (a
*check*), and the gate answers *sync* (exchange, a new common model) or *skip* (carry on; no model, no vector
moves). A gate is two pure functions over explicit state: `init()` and `step(state, reports)`, which returns
the new state and a `Decision` with its reason in words. States are plain numbers, texts and tuples of them:
what `json` makes of a state, `step` takes back.

    Every           a fixed period; `Every(1)` is bulk-synchronous training
    QSR             a period that grows as the learning rate falls (arXiv 2310.14423)
    RelativeChange  SelSync as published (arXiv 2307.07950): any source whose gradient norm changes
    Drift           the mean squared distance from the last common model, after FDA (EDBT 2025,
                    arXiv 2405.20988), with a threshold that steers itself to a budget

`min_gap` and `max_gap`, counted in checks, bind every gate (gaps.py). A source whose norm is not a number,
not finite or negative has no say; the decision names it. A source with zero steps has nothing to say.
"""

from fedgc.gates.drift import Drift, DriftState
from fedgc.gates.make import GateSettings, make_gate
from fedgc.gates.relative_change import RelativeChange
from fedgc.gates.reports import Decision, Gate, Report, Reports
from fedgc.gates.schedule import QSR, Every

__all__ = [
    "Report",
    "Reports",
    "Decision",
    "Gate",
    "Every",
    "QSR",
    "RelativeChange",
    "Drift",
    "DriftState",
    "GateSettings",
    "make_gate",
]
