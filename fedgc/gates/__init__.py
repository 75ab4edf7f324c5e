"""Gates: decide which rounds are exchanged.

Clients train from a common model. At each *check*, every so many local steps, they report a few numbers, and
the gate answers *sync* (exchange; a new common model) or *skip* (continue; no model or vector moves). A gate
is two pure functions over explicit state: `init()` and `step(state, reports)`, which returns the new state
and a `Decision` with its reason.

Each gate is one file, registered as an entry point of the group `fedgc.gates`; `gate.py` is the interface.
`min_gap` and `max_gap`, counted in checks, bound every shipped gate (gaps.py). A report whose norm is NaN,
infinite or negative is left out, and the decision names it. A report of zero steps is ignored.
"""

from fedgc.gates.gate import Gate, GateSettings, Measure
from fedgc.gates.make import DEFAULT_GATES, gate_named, make_gate, summaries
from fedgc.gates.reports import Decision, Report, Reports

__all__ = [
    "Report",
    "Reports",
    "Decision",
    "Gate",
    "GateSettings",
    "Measure",
    "DEFAULT_GATES",
    "gate_named",
    "make_gate",
    "summaries",
]
