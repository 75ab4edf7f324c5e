"""Test masked runs on real Flower processes: train, lose a site in mid-round, continue."""

import re
from pathlib import Path

import pytest

from fedgc.deploy.local_consortium import make_consortium
from fedgc.deploy.local_federation import Node, free_port
from fedgc.secagg import Quantizer
from fedgc.store.database import Store
from tests.contract.conftest import GATHER_S, WAIT_S, Federation
from tests.contract.relay import Relay, owner

pytestmark = pytest.mark.contract

SHUT_OUT = "site-2"  # from the port of sessions
ROUND = re.compile(r"^.*round (\d+) (synced|approximate) ", re.MULTILINE)
SETTINGS = {"work": "coded", "task": "digits", "chunks": 8, "threads": 1, "grace_s": 2.0, "evaluate_every": 1}


@pytest.fixture(scope="module")
def consortium(tmp_path_factory: pytest.TempPathFactory):
    folder: Path = tmp_path_factory.mktemp("masked")
    configs = {f"site-{number}": {"pace-s": 0.05} for number in range(4)}
    made = make_consortium(folder / "sites", configs, Quantizer(0.5, 20, 32, 2000), exchanges=4)
    stranger = Node("stranger", {"pace-s": 0.05})
    environment = {
        "FEDGC_DB": str(folder / "fedgc.db"),
        "XDG_STATE_HOME": str(folder / "state"),
    }
    nodes = [*made.nodes, stranger]
    with Federation(nodes, folder=folder / "processes", environment=environment) as federation:
        yield federation, made, folder


def text(federation, run: int) -> str:
    return federation.log(f"run-{run}").read_text(errors="replace")


def test_masked_run_survives_lost_site_and_readmits_it(consortium, contract_wait) -> None:
    federation, made, folder = consortium
    run = federation.submit(SETTINGS | made.settings() | {"rounds": 10_000, "run": "masked"})
    contract_wait(lambda: len(ROUND.findall(text(federation, run))) >= 2)
    said = "masked run needs federation and vault"
    contract_wait(lambda: said in federation.log("stranger").read_text(errors="replace"))
    federation.kill("stranger")  # each repeated request would start a process
    federation.kill("site-1")
    seen = len(ROUND.findall(text(federation, run)))
    contract_wait(lambda: len(ROUND.findall(text(federation, run))) > seen + 3)
    federation.restart("site-1")
    after = len(text(federation, run))
    contract_wait(lambda: "clients=4" in text(federation, run)[after:])
    federation.stop(run)
    with Store.open(str(folder / "fedgc.db"), reads_only=True) as store:
        rounds = store.rounds("masked")
    assert all(each.row.loss is None for each in rounds), "no loss of one site leaves it"
    accuracies = [each.row.metrics["accuracy"] for each in rounds if "accuracy" in each.row.metrics]
    assert max(accuracies) > 0.5


@pytest.mark.slow
def test_message_link_site_joins_sum_with_session_sites(consortium) -> None:
    federation, made, folder = consortium
    listener = f"127.0.0.1:{free_port()}"
    relay = Relay(listener)
    relay.lets_in = lambda flow: owner(flow.port, federation.pids(SHUT_OUT)) is None
    settings = SETTINGS | made.settings() | {"rounds": 1, "run": "two-links", "deadline_s": 300.0}
    settings |= {"seed": 7}  # from the other run's first model no site masks again
    settings |= {"connect_s": 2.0, "bind": listener, "advertise": relay.address, "start_timeout_s": GATHER_S}
    try:
        run = federation.submit(settings)
        status = federation.wait(run, WAIT_S)  # every packet starts a process
        assert status == "finished:completed", text(federation, run)[-2000:]
    finally:
        relay.close()
    with Store.open(str(folder / "fedgc.db"), reads_only=True) as store:
        (only,) = store.rounds("two-links")
        names = {client.client: client.name for client in store.clients()}
        rows = store.client_rows("two-links", only.row.round)
    assert only.row.outcome == "synced"
    links = {node.name: "session" for node in made.nodes} | {SHUT_OUT: "messages"}
    assert {names[row.client]: row.link for row in rows} == links
    assert all(row.counted > 0 for row in rows)


def test_site_refuses_unmasked_run(consortium, contract_wait) -> None:
    federation, _, _ = consortium
    run = federation.submit(SETTINGS | {"rounds": 2, "min_clients": 5, "start_timeout_s": GATHER_S})
    said = "takes part in masked runs alone, saw secrecy = open"
    contract_wait(lambda: said in federation.log("site-0").read_text(errors="replace"))
    federation.stop(run)
