"""Make an aggregation rule by name; all rules are entry points of the group `fedgc.aggregators`."""

from typing import Final

from fedgc import plugins
from fedgc.aggregators.rule import AggregationRule
from fedgc.errors import BadSetting
from fedgc.guards import guarded

GROUP: Final = "fedgc.aggregators"
PLAIN: Final = "weighted-mean"  # what the server computes where it sees no single update
BOUNDED: Final = "bounded-mean"
MIXED_RANKS: Final = "lora-mixed-ranks"


def rule_named(name: str) -> type[AggregationRule]:
    """Return the class of the rule of this name."""
    found: type[AggregationRule] = plugins.subclass(AggregationRule, GROUP, name, "aggregation.rule")
    return found


def make_rule(name: str, text: str = "") -> AggregationRule:
    """Return a new rule of this name; `text` gives its own options, as in the setting `aggregation.options`.

    >>> make_rule("trimmed-mean", "trim=0.1").summary
    'of each coordinate the mean without the share trim at each end; clients count alike'
    """
    kind, owner = rule_named(name), f"aggregator {name}"
    own = plugins.options(kind, text, "aggregation.options", owner)
    with guarded(owner, error=BadSetting):
        return kind(**own)


def rule_summaries() -> str:
    """Return every installed rule with its summary, in one sentence."""
    return plugins.summaries(GROUP, rule_named)
