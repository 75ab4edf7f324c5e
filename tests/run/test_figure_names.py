"""Test which values of a figure are better by its name."""

import pytest

from fedgc.errors import BadSetting
from fedgc.run.figure_names import direction_of, is_lowest

ERRORS = """
    loss val_loss eval/loss loss_val logloss Perplexity error test_error error_rate top5_error word_error_rate
    mae val_mae MAE valMAE rmse rmse_val mape nll cross_entropy wer brier_score fid_score BinaryHingeLoss
    MeanAbsolutePercentageError accuracy_loss loss.0
"""
SCORES = """
    accuracy balanced_accuracy accuracy_macro accuracy@5 acc f1 f1_weighted F1-score BinaryF1Score roc_auc auc
    BinaryAUROC dice mean_dice iou mIoU JaccardIndex mAP map50 r2 r2_score R2Score precision recall@10 bleu
    bleu-4 rougeL score val_score mean_test_score explained_variance log_likelihood class_1_f1
"""
UNKNOWN = """
    distance size seconds norm own best epsilon learning_rate loss_scale accuracy_std loss_of_accuracy
    neg_mean_squared_error negative_loss one_minus_dice 1-accuracy std_accuracy davies_bouldin_score
    risk_score class_1_score neg_score inaccuracy imprecision policy_entropy 7
"""


@pytest.mark.parametrize(
    ("names", "direction"), [(ERRORS, "lowest"), (SCORES, "highest"), (UNKNOWN, None)], ids=str
)
def test_last_word_of_name_says_which_values_are_better(names: str, direction: str | None) -> None:
    assert {name: direction_of(name) for name in names.split()} == dict.fromkeys(names.split(), direction)


def test_words_may_stand_apart() -> None:
    assert direction_of("mean absolute error") == "lowest"
    assert direction_of("mean average precision") == "highest"


def test_setting_counts_before_name() -> None:
    assert not is_lowest("mae", "highest")
    assert is_lowest("distance", "lowest")
    with pytest.raises(
        BadSetting, match=r"validate\.best-is: saw auto, needed highest or lowest .* distance"
    ):
        is_lowest("distance", "auto")
