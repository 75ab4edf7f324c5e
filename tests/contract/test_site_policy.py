"""Test the policies of sites on real processes: refusals are named, and hours end and begin."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedgc.deploy.local_federation import Node, write_app
from fedgc.flower.app_bundle import bundle_of
from fedgc.policy import verify
from fedgc.policy.digests import app_digest, files_in_bundle
from fedgc.store.explanation import explain
from tests.contract.conftest import GATHER_S, PACE_S, WAIT_S, Federation, eventually
from tests.contract.test_preempt import told

pytestmark = [
    pytest.mark.contract,
    pytest.mark.slow,  # windows count in minutes
]

REFUSING = {
    "strict": ("secrecy.least", '[secrecy]\nleast = "masked"\n'),
    "picky": ("allow.apps", f'[allow]\napps = ["sha256:{"0" * 64}"]\n'),
}
SETTINGS = {
    "run": "nights", "work": "local", "task": "digits", "rounds": 100_000, "local_steps": 10,
    "gate": "every", "gate_period": 1000, "min_clients": 2, "start_timeout_s": GATHER_S, "threads": 1,
    "max_gap": 4000, "quorum": 0.5,
}  # fmt: skip


def clock(at: float) -> str:
    return time.strftime("%H:%M", time.gmtime(at))


def hours() -> tuple[str, float]:
    """Return windows that close after 75 to 135 s, and open again a minute later; and the closing time."""
    closes = 60 * (int(time.time() + 75) // 60 + 1)
    windows = [f"{clock(closes - 600)}-{clock(closes)}", f"{clock(closes + 60)}-{clock(closes + 3600)}"]
    return f"[hours]\nopen = {json.dumps(windows)}\n", closes


def began_again(federation: Federation, closes: float) -> bool:
    """Whether the client with hours works in a round that began after its hours ended."""
    return any(row.started > closes and "night" in clients for row, clients in told(federation, "nights"))


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[tuple[Federation, Path, float]]:
    text, closes = hours()
    sent = files_in_bundle(bundle_of(write_app(tmp_path / "app", {})))
    text += f'[allow]\napps = ["{app_digest(sent)}"]\n'
    nodes = [Node("free", {"pace-s": PACE_S})]
    for name, policy in {"night": text, **{name: text for name, (_, text) in REFUSING.items()}}.items():
        file = tmp_path / name / "site.toml"
        file.parent.mkdir()
        file.write_text(policy)
        nodes.append(Node(name, {"pace-s": PACE_S, "leave-grace-s": 8.0, "policy": str(file)}))
    environment = {"FEDGC_DB": str(tmp_path / "fedgc.db"), "XDG_STATE_HOME": str(tmp_path / "state")}
    with Federation(nodes, folder=tmp_path / "processes", environment=environment) as started:
        yield started, tmp_path, closes


def rounds_of_night(federation: Federation) -> list[int]:
    """The rounds whose sum has work of the client with hours."""
    return [
        row.round
        for row, clients in told(federation, "nights")
        if "night" in clients and clients["night"].counted
    ]


def test_policies_of_sites_hold(sites: tuple[Federation, Path, float]):
    federation, folder, closes = sites
    run = federation.submit(SETTINGS)
    eventually((folder / "night" / "site.audit.jsonl").exists)  # it has joined, so there is a store
    eventually(lambda: len(told(federation, "nights")) > 2)
    with federation.store() as store:
        said = explain(store, store.run("nights"), time.time()).lines
        assert any(line.startswith("hours: may train longer: night for") for line in said)
        eventually(lambda: len([each for each in store.audited("nights") if each.kind == "policy"]) >= 2)
        said = explain(store, store.run("nights"), time.time()).lines
        for name, (rule, _) in REFUSING.items():
            (refused,) = {each for each in said if each.startswith(f"refused by its site: client {name}: ")}
            assert f"({rule}): saw" in refused
        eventually(lambda: rounds_of_night(federation), closes - time.time() + 30)
        handed_in = rounds_of_night(federation)[-1]
        row = next(row for row, _ in told(federation, "nights") if row.round == handed_in)
        assert row.reason.startswith("client night is leaving")
        assert row.started + row.working_s + row.collecting_s < closes + 1, "handed in before its hours ended"
        eventually(lambda: began_again(federation, closes), closes + 60 - time.time() + 90)
        assert time.time() >= closes + 60
    federation.stop(run)
    federation.wait(run, WAIT_S)
    log = folder / "night" / "site.audit.jsonl"
    assert verify(log).lines
    kinds = [json.loads(line)["what"] for line in log.read_text().splitlines()]
    assert kinds.count("joined") >= 2
    assert kinds.count("exchange") == 1
    for name in REFUSING:
        refusals = (folder / name / "site.audit.jsonl").read_text().splitlines()
        assert {json.loads(line)["what"] for line in refusals} == {"refused"}
