"""The settings of a run: the name, default, meaning and allowed values of each, by what they are about.

`RunConfig` (run_config.py) adds derived values. In tables (`pyproject.toml`, `--set`) a setting has the first
name, for example `gate.budget`; in Python it is the field, `gate_budget`.
"""

from dataclasses import dataclass

from fedgc.config.data_settings import DataSettings
from fedgc.config.history_settings import HistorySettings
from fedgc.config.link_settings import LinkSettings
from fedgc.config.privacy_settings import PrivacySettings
from fedgc.config.round_settings import RoundSettings
from fedgc.config.training_settings import TrainingSettings


@dataclass(frozen=True, slots=True)
class Settings(  # a dataclass takes the fields of its last base first
    PrivacySettings,
    HistorySettings,
    LinkSettings,
    RoundSettings,
    DataSettings,
    TrainingSettings,
):
    """Every setting of a run, unchecked."""
