"""The settings of a run."""

from fedgc.config.fields import AUTO, NAME, TASK, Value
from fedgc.config.names import BASIC, KEYS, dashed, flat, group_of, known
from fedgc.config.requirements import Requirements, requirements
from fedgc.config.run_config import RunConfig, check_each, is_text

__all__ = [
    "AUTO",
    "BASIC",
    "KEYS",
    "NAME",
    "TASK",
    "Requirements",
    "RunConfig",
    "Value",
    "check_each",
    "dashed",
    "flat",
    "group_of",
    "is_text",
    "known",
    "requirements",
]
