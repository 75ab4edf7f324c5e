"""Masked rounds over letters alone: every letter finds a fresh process, that has a vault and a shelf."""

import os
import time
from pathlib import Path

import pytest

from fedgc.config import RunConfig
from fedgc.flower.institution import Institution
from fedgc.secagg import Federation, Quantiser
from fedgc.secagg.federation import member_list
from fedgc.store.vault import Vault
from tests.flower.test_driver import UNMEASURED
from tests.flower.test_letters import SETTINGS, carried_out

COUNT, ROUNDS = 3, 3
MASKED = {
    "secrecy": "masked", "federation": "all.fed", "min-devices": COUNT, "chunks": 6, "replicas": "auto",
    "rounds": ROUNDS, "gate": "every",
}  # fmt: skip


@pytest.mark.parametrize("work", [{"work": "coded"}, {"work": "local", "gate-every": 4}])
def test_every_institution_is_in_every_sum_though_no_process_lives_longer_than_a_letter(
    link, tmp_path: Path, work: dict[str, object]
) -> None:
    config = RunConfig.read({**SETTINGS, **UNMEASURED, **MASKED, **work})

    def vault(node: int) -> Vault:
        return Vault.open(tmp_path / f"vault-{node}.db", b"a long secret")

    def institution(node: int) -> Institution:
        return Institution(federation, vault(node), config, time.time, os.urandom)

    keys = []
    for node in range(COUNT):
        with vault(node) as opened:
            keys.append((f"site {node}", opened.identity().public))
    federation = Federation(member_list(keys), 3, 3, 8, Quantiser(0.5, 20, 32, 2000))
    driver, sink, _ = carried_out(link, tmp_path, federation, institution, **MASKED, **work)
    assert [row.outcome for row in sink.rows] == ["synced"] * ROUNDS, [row.reason for row in sink.rows]
    assert sink.audit == [], "nothing was refused"
    for row in sink.rows:
        assert [device.link for device in row.devices] == ["messages"] * COUNT
        assert all(device.counted > 0 for device in row.devices)
        assert all(device.up_bytes >= 4 * driver.common.size for device in row.devices)
    before, after = (driver.common.evaluate(model) for model in (driver.common.first(), driver.model))
    assert after["loss"] < before["loss"]
