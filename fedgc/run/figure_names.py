"""Which values of a figure are better, by its name."""

import re
from typing import Final, Literal

from fedgc.errors import BadSetting

Direction = Literal["lowest", "highest"]

LOWEST_IS_BEST: Final = frozenset(
    {
        "loss", "losses", "error", "errors", "err", "mistakes", "perplexity", "ppl", "mae", "mse", "rmse",
        "rmsd", "msle", "rmsle", "mape", "smape", "wape", "mase", "nll", "bce", "crossentropy", "brier",
        "wer", "cer", "ter", "eer", "fid", "lpips", "crps", "regret",
    }
)  # fmt: skip
HIGHEST_IS_BEST: Final = frozenset(
    {
        "accuracy", "accuracies", "acc", "auc", "auroc", "auprc", "dice", "dsc", "iou", "miou", "jaccard",
        "f1", "f2", "fbeta", "r2", "precision", "recall", "sensitivity", "specificity", "ap", "map",
        "mrr", "ndcg", "bleu", "rouge", "meteor", "chrf", "cider", "psnr", "ssim", "mcc", "kappa",
        "pearson", "spearman", "correlation", "exactmatch", "loglikelihood", "explainedvariance", "reward",
    }
)  # fmt: skip
JOINED: Final = ("loss", "error", "perplexity")  # also as ends of words: logloss
ASIDE: Final = frozenset(  # may follow the word that counts
    {
        "at", "avg", "average", "best", "client", "clients", "dev", "eval", "final", "global", "k", "l",
        "local", "macro", "max", "mean", "median", "micro", "min", "overall", "percent", "rate", "server",
        "site", "sites", "test", "top", "total", "train", "training", "val", "valid", "validation",
        "value", "weighted", "index", "coefficient",
    }
)  # fmt: skip
SPREAD: Final = frozenset({"std", "stdev", "stddev", "sd", "stderr", "sem", "deviation"})
TURNED: Final = frozenset({"neg", "negative", "minus", "inverse", "inverted", "one", "without"})
WORDS: Final = re.compile(r"IoU|[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*|\d+")


def is_lowest(figure: str, best_is: str) -> bool:
    """Whether lower values of this figure are better, by `validate.best-is` or else by its name.

    Raises:
        BadSetting: Neither says it.

    >>> is_lowest("val_mae", "auto"), is_lowest("val_mae", "highest"), is_lowest("BinaryF1Score", "auto")
    (True, False, False)
    """
    chosen = best_is if best_is != "auto" else direction_of(figure)
    if chosen is None:
        raise BadSetting(
            f"setting validate.best-is: saw auto, needed highest or lowest for validate.best = {figure}, "
            "whose name does not say which values are better"
        )
    return chosen == "lowest"


def direction_of(figure: str) -> Direction | None:
    """Return which values of this figure are better, None if its name does not say it.

    The last word counts, also with others before it and with numbers, averages or data sets after it. A name
    whose words contradict each other does not say it.

    >>> [direction_of(each) for each in ("eval/loss", "recall@10", "mean absolute error", "accuracy_macro")]
    ['lowest', 'highest', 'lowest', 'highest']
    >>> [direction_of(each) for each in ("size", "neg_mean_squared_error", "loss_of_accuracy", "loss_scale")]
    [None, None, None, None]
    """
    words = [each.lower() for each in WORDS.findall(figure)]
    if (TURNED | SPREAD).intersection(words) or words[:1] == ["1"]:
        return None
    while words and (words[-1] in ASIDE or words[-1].isdigit() or words[-1].rstrip("0123456789") in ASIDE):
        words.pop()
    if not words:
        return None
    *before, last = words
    if last in ("score", "scores"):  # a Brier score is an error, an F1 score is not
        return "highest" if ASIDE.issuperset(before) else direction_of(" ".join(before))
    found = _of_word("".join(words[-2:])) or _of_word(last)
    contradicts = found == "highest" and any(_of_word(each) == "lowest" for each in before)
    return None if contradicts else found


def _of_word(word: str) -> Direction | None:
    stem = word.rstrip("0123456789")
    if not LOWEST_IS_BEST.isdisjoint((word, stem)) or stem.endswith(JOINED):
        return "lowest"
    return "highest" if not HIGHEST_IS_BEST.isdisjoint((word, stem)) else None
