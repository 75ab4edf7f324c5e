"""Aggregation rules: one mean update from the updates of local work."""

from fedgc.aggregators.collecting import CollectingRule, Update, by_coordinate, mean_of, need, squared_norm
from fedgc.aggregators.make import BOUNDED, MIXED_RANKS, PLAIN, make_rule, rule_named, rule_summaries
from fedgc.aggregators.outlier_check import OutlierCheck
from fedgc.aggregators.result import result_of
from fedgc.aggregators.rule import AggregationRule, Shapes, Vector

__all__ = [
    "BOUNDED", "MIXED_RANKS", "PLAIN", "AggregationRule", "CollectingRule", "OutlierCheck", "Shapes",
    "Update", "Vector", "by_coordinate", "make_rule", "mean_of", "need", "result_of", "rule_named",
    "rule_summaries", "squared_norm",
]  # fmt: skip
