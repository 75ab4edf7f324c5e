"""Test sites on real processes: fleets with servers of their own, whose gateways form a consortium."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedgc.deploy.local_federation import NAME, Node
from fedgc.store.database import Store
from tests.contract.conftest import GATHER_S, WAIT_S, Federation, eventually

pytestmark = [pytest.mark.contract, pytest.mark.slow, pytest.mark.timeout(900)]

NORTH = "north"
STEPS, ORDERS = 24, 3  # local steps of a round of the consortium, which are so many rounds of the site
TASK = "fedgc.training.tasks.digits:digits_part"
SETTINGS = {
    "task": TASK, "rounds": 1000, "min_clients": 2, "local_steps": STEPS, "quorum": 1.0, "lockstep": "on",
    "gate": "every", "shared_momentum": "off", "threads": 1, "start_timeout_s": GATHER_S,
    "grace_s": 120.0, "deadline_s": 600.0, "upload_deadline_s": 300.0,
}  # fmt: skip
SAID = re.compile(r"accuracy ([\d.]+); ([\d.]+) MB from (\d+) clients")


@pytest.fixture
def consortium(tmp_path: Path) -> Iterator[Federation]:
    apart = {"FEDGC_DB": str(tmp_path / "fedgc.db"), "XDG_STATE_HOME": str(tmp_path / "state")}
    pace = {"pace-s": 0.15}
    fleet = [Node(f"ward-{number}", {**pace, "part": f"{number}/3"}) for number in (1, 2)]
    Store.open(str(tmp_path / "fedgc.db")).close()
    with Federation(fleet, folder=tmp_path / "site", environment=apart) as site:
        own = {"site": NAME, "site-home": str(site.home), "uplink-kb-s": 8.0}
        own["site-settings"] = (
            f"min-clients=2 local-steps={STEPS // ORDERS} timing.start-timeout-s={GATHER_S}"
        )
        nodes = [Node(NORTH, own), Node("single", {**pace, "part": "3/3"})]
        with Federation(nodes, folder=tmp_path / "processes", environment=apart) as federation:
            yield federation


def rounds_of(federation: Federation, run: str) -> int:
    """The rounds of a run that made a model."""
    with federation.store() as store:
        if not any(each.run == run for each in store.runs()):
            return 0
        return sum(each.row.outcome in ("synced", "approximate") for each in store.rounds(run))


def phase_of(federation: Federation) -> object:
    with federation.store() as store:
        return store.run("all").present.get("phase")


def test_gateway_killed_in_each_phase_loses_no_round(consortium: Federation) -> None:
    run = consortium.submit({**SETTINGS, "run": "all"})
    for phase in ("working", "collecting"):
        before = rounds_of(consortium, "all")

        def is_due(phase: str = phase, before: int = before) -> bool:
            done = rounds_of(consortium, f"all-{NORTH}") - ORDERS * rounds_of(consortium, "all")
            there = done >= 1 if phase == "working" else done >= ORDERS
            return rounds_of(consortium, "all") >= before and there and phase_of(consortium) == phase

        eventually(is_due)
        consortium.kill(NORTH)
        consortium.restart(NORTH)
        reached = rounds_of(consortium, "all")
        eventually(lambda reached=reached: rounds_of(consortium, "all") >= reached + 2)
    consortium.stop(run)
    consortium.wait(run, WAIT_S)
    with consortium.store() as store:
        names = {client.client: client.name for client in store.clients()}
        rows = [store.client_rows("all", each.row.round) for each in store.rounds("all")]
    counted = [{names[each.client]: each.counted for each in clients} for clients in rows]
    assert counted[:-1] == [{NORTH: STEPS, "single": STEPS}] * (len(counted) - 1)
    repeated = rounds_of(consortium, f"all-{NORTH}") - ORDERS * rounds_of(consortium, "all")
    assert 0 <= repeated <= ORDERS, "rounds of the site that no round of the consortium has counted"


def test_demo_of_sites_is_as_accurate_as_pooled_fleet(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedgc.cli", "demo", "--sites", "2", "--clients", "3"]
    done = subprocess.run(
        [*command, "--folder", str(tmp_path / "demo")],
        capture_output=True,
        text=True,
        timeout=800,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    sites, pooled = (
        (float(accuracy), float(mb) / int(clients)) for accuracy, mb, clients in SAID.findall(done.stdout)
    )
    assert sites[0] >= pooled[0] - 0.01
    assert sites[1] == pytest.approx(pooled[1], rel=0.1), "one vector for each site"
