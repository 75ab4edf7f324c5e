"""Test sites on real processes: fleets with servers of their own, whose gateways form a consortium."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from fedgc.cli.demo import NUMBERS
from fedgc.deploy.app_folder import Setting
from fedgc.deploy.local_consortium import make_consortium
from fedgc.deploy.local_federation import NAME, Node
from fedgc.messages import SUMMED
from fedgc.store.database import Store
from tests.contract.conftest import GATHER_S, WAIT_S, Federation, eventually

pytestmark = [pytest.mark.contract, pytest.mark.slow, pytest.mark.timeout(900)]

NORTH, EAST, SINGLE = "north", "east", "single"
STEPS, ORDERS = 24, 3  # local steps of a round of the consortium, which are so many rounds of the site
TASK = "fedgc.training.tasks.digits:digits_part"
SETTINGS = {
    "task": TASK, "rounds": 1000, "min_clients": 2, "local_steps": STEPS, "quorum": 1.0, "lockstep": "on",
    "gate": "every", "shared_momentum": "off", "threads": 1, "start_timeout_s": GATHER_S,
    "grace_s": 120.0, "deadline_s": 600.0, "upload_deadline_s": 300.0,
}  # fmt: skip
SAID = re.compile(r"accuracy ([\d.]+); ([\d.]+) MB from (\d+) clients")


PACE = {"pace-s": 0.15}


@pytest.fixture
def apart(tmp_path: Path) -> dict[str, str]:
    """The environment: a store and a state folder of the test alone."""
    return environment_in(tmp_path)


def environment_in(folder: Path) -> dict[str, str]:
    Store.open(str(folder / "fedgc.db")).close()
    return {"FEDGC_DB": str(folder / "fedgc.db"), "XDG_STATE_HOME": str(folder / "state")}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Federation]:
    """A fleet of two, with a store of its own, which is not that of its gateway."""
    (folder := tmp_path / "site").mkdir()
    fleet = [Node(f"ward-{number}", {**PACE, "part": f"{number}/4"}) for number in (1, 2)]
    with Federation(fleet, folder=folder / "processes", environment=environment_in(folder)) as site:
        yield site


@pytest.fixture
def gateway(site: Federation) -> Mapping[str, Setting]:
    """The node config of the gateway of the fleet."""
    steps = f"local-steps={STEPS // ORDERS} timing.start-timeout-s={GATHER_S}"
    return {"site-fleet": NAME, "site-home": str(site.home), "site-settings": f"min-clients=2 {steps}"}


@pytest.fixture
def consortium(tmp_path: Path, apart: dict[str, str], gateway: Mapping[str, Setting]) -> Iterator[Federation]:
    nodes = [Node(NORTH, {**gateway, "uplink-kb-s": 8.0}), Node(SINGLE, {**PACE, "part": "3/4"})]
    with Federation(nodes, folder=tmp_path / "processes", environment=apart) as federation:
        yield federation


def rounds_of(federation: Federation, run: str) -> int:
    """The rounds of a run that made a model."""
    with federation.store() as store:
        if not any(each.run == run for each in store.runs()):
            return 0
        return sum(each.row.outcome in SUMMED for each in store.rounds(run))


def phase_of(federation: Federation) -> object:
    with federation.store() as store:
        return store.run("all").present.get("phase")


def awaits(federation: Federation, phase: str, name: str) -> bool:
    """Whether the run is in this phase of a round without a row yet, and waits for this client alone."""
    with federation.store() as store:
        run = store.run("all")
    live = run.present
    awaited = [each["name"] for each in live.get("clients", ()) if each["awaited"]]
    is_present = live.get("round", 0) > (run.last_round or 0)
    return is_present and live.get("phase") == phase and awaited == [name]


def suspend(federation: Federation, name: str, number: signal.Signals) -> None:
    for pid in federation.clients(name):
        os.kill(pid, number)


def test_gateway_killed_in_each_phase_loses_no_round(consortium: Federation, site: Federation) -> None:
    run = consortium.submit({**SETTINGS, "run": "all"})
    for phase in ("working", "collecting"):
        before = rounds_of(consortium, "all")

        def is_due(phase: str = phase, before: int = before) -> bool:
            done = rounds_of(site, f"all-{NORTH}") - ORDERS * rounds_of(consortium, "all")
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
    repeated = rounds_of(site, f"all-{NORTH}") - ORDERS * rounds_of(consortium, "all")
    assert 0 <= repeated <= ORDERS, "rounds of the site that no round of the consortium has counted"


@pytest.fixture
def masked(
    tmp_path: Path, apart: dict[str, str], gateway: Mapping[str, Setting]
) -> Iterator[tuple[Federation, Mapping[str, Setting]]]:
    """A consortium whose sums are of three: without the answers of all, none is unmasked."""
    others = {EAST: {**PACE, "part": "3/4"}, SINGLE: {**PACE, "part": "4/4", "uplink-kb-s": 8.0}}
    made = make_consortium(tmp_path / "keys", {NORTH: gateway, **others}, NUMBERS)
    usual = {name: value for name, value in SETTINGS.items() if name != "min_clients"}
    with Federation(made.nodes, folder=tmp_path / "processes", environment=apart) as federation:
        yield federation, {**usual, **made.settings()}


def hold(federation: Federation, phase: str, *, signs: bool) -> None:
    """Hold the run in a phase by suspending clients; the gateway has signed the set of survivors, or not."""
    eventually(lambda: awaits(federation, "collecting", SINGLE))
    holder = EAST if signs else NORTH
    suspend(federation, holder, signal.SIGSTOP)
    eventually(lambda: awaits(federation, "agreeing", holder))
    if phase == "unmasking":
        suspend(federation, NORTH, signal.SIGSTOP)
        suspend(federation, EAST, signal.SIGCONT)
        eventually(lambda: awaits(federation, "unmasking", NORTH))


def test_gateway_killed_while_unmasking_counts_in_its_round(
    masked: tuple[Federation, Mapping[str, Setting]], site: Federation
) -> None:
    federation, settings = masked
    run = federation.submit({**settings, "run": "all"})
    eventually(lambda: rounds_of(federation, "all"))
    for phase, signs in (("agreeing", False), ("agreeing", True), ("unmasking", True)):
        hold(federation, phase, signs=signs)
        reached = rounds_of(federation, "all")
        federation.kill(NORTH)
        suspend(federation, EAST, signal.SIGCONT)
        federation.restart(NORTH)
        eventually(lambda reached=reached: rounds_of(federation, "all") >= reached + 2)
    federation.stop(run)
    federation.wait(run, WAIT_S)
    with federation.store() as store:
        names = {client.client: client.name for client in store.clients()}
        rounds = [each.row for each in store.rounds("all")][:-1]  # the last one was stopped
        counted = [
            {names[each.client]: each.counted for each in store.client_rows("all", row.round)}
            for row in rounds
        ]
    assert {row.outcome for row in rounds} == {"synced"}
    assert counted == [dict.fromkeys((NORTH, EAST, SINGLE), STEPS)] * len(rounds)
    repeated = rounds_of(site, f"all-{NORTH}") - ORDERS * rounds_of(federation, "all")
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
