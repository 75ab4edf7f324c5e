"""The settings of what a run chooses and keeps: `[validate]`, `[history]`; and the gateway of a site."""

from dataclasses import dataclass
from typing import Literal

from fedgc.config.fields import AUTO, All, count, not_negative, setting


@dataclass(frozen=True)
class HistorySettings:
    """Which model is best, whose gateway gets it, and what is written down."""

    __slots__ = ()

    # What models are worth
    best: str = setting(
        "validate.best", "", "the figure by which the best model of the run is chosen (empty: none is chosen)"
    )
    best_is: Literal["auto", "highest", "lowest"] = setting(
        "validate.best-is",
        AUTO,
        "which value of it is best; auto: by its name the lowest (loss, error, mae, perplexity) or the "
        "highest (accuracy, f1, auc, score); a run with another name needs highest or lowest",
    )
    best_patience: int = setting(
        "validate.patience",
        0,
        "evaluations in a row without a better model after which the run stops (0: it does not)",
        not_negative,
        "0 or more",
    )
    validate_only: int | Literal["off"] = setting(
        "validate.only",
        "off",
        "with resume: the version of the model that clients score, without training, as `fedgc evaluate` "
        "asks for it (off: the run trains)",
        not_negative,
        "0 or more, or off",
    )

    # Sites
    site_gateway: str = setting(
        "site.gateway",
        "",
        "file by which the server of a site finds its gateway; the gateway sets it (empty: no site)",
    )

    # History and checkpoints
    evaluate_every: int = setting(
        "history.evaluate-every",
        1,
        "rounds between evaluations; the server also evaluates the model of the last round (0: never)",
        not_negative,
        "0 or more",
    )
    checkpoint_dir: str = setting(
        "history.checkpoint-dir",
        "",
        "folder of all runs' checkpoints (empty: runs/ beside the default store)",
    )
    keep_checkpoints: int | All = setting(
        "history.keep-checkpoints",
        3,
        "how many of the newest are kept (0: none are written; all: every one)",
        not_negative,
        "0 or more, or all",
    )
    log_file: str = setting(
        "history.log-file", "", "file of the server to add JSON lines to, one a round (empty: none)"
    )
    sinks: str = setting(
        "history.sinks", "", "sinks of other packages to add, by name, with commas between (empty: none)"
    )
    keep_rounds: int = setting(
        "history.keep-rounds",
        10_000,
        "rounds whose client rows the store keeps before it folds them into summaries",
        count,
        "at least 1",
    )
