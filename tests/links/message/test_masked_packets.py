"""Test masked rounds over packets alone: each packet starts a process with a vault and a cache."""

import os
import time
from pathlib import Path

import pytest

from fedgc.flower.masked_client import MaskedClient
from fedgc.secagg import Federation, Quantizer
from fedgc.secagg.federation import member_list
from fedgc.store.vault import Vault
from tests.config_of import config_of
from tests.flower.test_driver import UNMEASURED
from tests.links.message.test_packets import SETTINGS, carried_out

COUNT, ROUNDS = 3, 3
MASKED = {
    "secrecy": "masked", "federation": "all.fed", "min_clients": COUNT, "chunks": 6, "replicas": "auto",
    "rounds": ROUNDS, "gate": "every",
}  # fmt: skip


@pytest.mark.parametrize(
    "work", [pytest.param({"work": "coded"}, marks=pytest.mark.slow), {"work": "local", "local_steps": 4}]
)
def test_every_site_joins_every_sum_with_one_process_per_packet(
    link, tmp_path: Path, work: dict[str, object]
) -> None:
    config = config_of({"work": "coded", **SETTINGS, **UNMEASURED, **MASKED, **work})

    def vault(node: int) -> Vault:
        return Vault.open(tmp_path / f"vault-{node}.db", b"a long secret")

    def site(node: int) -> MaskedClient:
        return MaskedClient(federation, vault(node), config, time.time, os.urandom)

    keys = []
    for node in range(COUNT):
        with vault(node) as opened:
            keys.append((f"site {node}", opened.identity().public))
    federation = Federation(member_list(keys), 3, 3, 8, Quantizer(0.5, 20, 32, 2000))
    driver, sink, _ = carried_out(link, tmp_path, federation, site, **MASKED, **work)
    assert [row.outcome for row in sink.rows] == ["synced"] * ROUNDS, [row.reason for row in sink.rows]
    assert sink.audit == [], "nothing was refused"
    for row in sink.rows:
        assert [client.link for client in row.clients] == ["messages"] * COUNT
        assert all(client.counted > 0 for client in row.clients)
        assert all(client.up_bytes >= 4 * driver.common.size for client in row.clients)
    before, after = (driver.common.evaluate(model) for model in (driver.common.first(), driver.model))
    assert after["loss"] < before["loss"]
