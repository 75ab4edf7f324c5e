"""Test when a run whose privacy is pinned by a descriptor ends, and what it warns of."""

from dataclasses import replace

import numpy as np
import pytest

from fedgc.flower.privacy_account import PrivacyAccount
from fedgc.history import ClientRow, RoundRow
from fedgc.secagg import Federation, Privacy, Quantizer
from fedgc.secagg.federation import member_list
from fedgc.store.checkpoint import Checkpoint
from fedgc.training import CommonModel
from fedgc.training.tasks import named
from tests.config_of import config_of

RELEASES = 2


@pytest.fixture
def pinned() -> Federation:
    members = member_list([(name, bytes([number]) * 32) for number, name in enumerate("abc")])
    return Federation(members, 3, 3, 8, Quantizer(1.0, 20, 32, 10), Privacy(1.0, 4.0, RELEASES, 1e-6))


def account(pinned: Federation, resumed: Checkpoint | None = None) -> PrivacyAccount:
    config = config_of({"task": "digits", "work": "local"})
    return PrivacyAccount(None, pinned, CommonModel(named("digits", config), config), resumed)


def row(number: int, version: int, outcome: str = "synced") -> RoundRow:
    return RoundRow(
        number, version, 0.0, 1.0, 1.0, outcome, 4, 4, (), 1, 1, 3, None, None, None, 9, 0, 0, 0, 0, ""
    )  # fmt: skip


def test_run_is_complete_after_last_exchange_of_descriptor(pinned: Federation) -> None:
    privacy = account(pinned)
    for number, version, outcome in ((1, 0, "synced"), (2, 1, "skipped"), (3, 1, "aborted")):
        privacy.released(row(number, version, outcome))
        assert privacy.ending is None
    assert privacy.released(row(4, 1))["epsilon"] == pinned.privacy.spent(RELEASES)
    assert privacy.ending is not None
    assert (privacy.ending.complete, privacy.ending.reason) == (
        True, "all 2 exchanges that the descriptor allows are done (--releases)",
    )  # fmt: skip


def test_masked_updates_without_sum_count_as_exchange(pinned: Federation) -> None:
    privacy = account(pinned)
    privacy.released(row(1, 0, "aborted"))
    uploaded = replace(row(2, 0, "aborted"), clients=(ClientRow("a", upload_s=0.5), ClientRow("b")))
    assert privacy.released(uploaded) == {}
    assert privacy.ending is None
    assert privacy.released(row(3, 0))["epsilon"] == pinned.privacy.spent(RELEASES)
    assert privacy.ending is not None


def test_resumed_run_has_exchanges_of_its_checkpoint_done(pinned: Federation) -> None:
    for version in (RELEASES - 1, RELEASES):
        saved = Checkpoint(3, version, np.zeros(8, np.float32), b"", "[]")
        assert (account(pinned, saved).ending is None) is (version < RELEASES)


def test_more_rounds_than_exchanges_of_descriptor_are_warned_of(pinned: Federation) -> None:
    privacy = account(pinned)
    assert privacy.warning(RELEASES) == account(replace(pinned, privacy=None)).warning(99) == ""
    assert privacy.warning(3) == (
        "setting rounds: saw 3, but the descriptor allows 2 exchanges in all runs (--releases): "
        "the run ends after these"
    )
