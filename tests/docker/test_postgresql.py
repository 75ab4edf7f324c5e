"""Test the server's store on PostgreSQL at the address of .env.example, with its user and password."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml

from fedgc.deploy.local_federation import LocalFederation
from fedgc.store.database import Store
from fedgc.store.records import Begun, Ended
from tests.store.postgres import PASSWORD, running

DOCKER = Path(__file__).parents[2] / "docker"


@pytest.fixture
def address() -> Iterator[str]:
    """A database whose user and name are the compose file's; its address as .env has it."""
    services = yaml.safe_load((DOCKER / "compose.server.yaml").read_text())["services"]
    wanted = services["database"]["environment"]
    example = re.search(r"^# FEDGC_DB=(.*)$", (DOCKER / ".env.example").read_text(), re.MULTILINE)
    assert example is not None
    with running(wanted["POSTGRES_USER"]) as server:
        server.carry_out(f"CREATE DATABASE {wanted['POSTGRES_DB']}")
        shown = example.group(1).replace("PASSWORD", quote(PASSWORD, safe=""))
        yield shown.replace("@database/", f"@127.0.0.1:{server.port}/")


def test_database_rows_are_read_back_and_password_is_never_shown(address: str):
    with Store.open(address) as store:
        store.write(Begun(1_700_000_000.0, "here", {"task": "digits", "rounds": 1}))
        store.write(Ended(1_700_000_009.0, "here", "finished"))
        assert PASSWORD not in store.name
    with Store.open(address) as store:
        assert (store.run("here").state, dict(store.run("here").settings)) == (
            "finished",
            {"task": "digits", "rounds": 1},
        )


@pytest.mark.contract
@pytest.mark.slow
def test_run_stores_rows_in_database_of_compose_file(address: str):
    settings = {"rounds": 2, "data.chunks": 4, "min-clients": 2, "run": "on-postgresql"}
    with LocalFederation(nodes=2, environment={"FEDGC_DB": address}) as federation:
        run = federation.submit(settings)
        assert federation.wait(run, 180.0) == "finished:completed"
    with Store.open(address) as store:
        assert store.run("on-postgresql").state == "completed"
        assert [each.row.outcome for each in store.rounds("on-postgresql")] == ["synced", "synced"]
        assert PASSWORD not in store.name
