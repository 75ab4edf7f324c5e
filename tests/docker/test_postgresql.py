"""The server's store on PostgreSQL, at the address that .env.example shows, with its user and password."""

import os
import pwd
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml

from fedgc.flower.local import LocalFederation
from fedgc.store.database import Store

DOCKER = Path(__file__).parents[2] / "docker"
PASSWORD = "it's a secret/@:"


def program(name: str) -> str:
    debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    found = shutil.which(name) or (str(debian[-1]) if debian else None)
    if found is None:
        pytest.skip(f"no PostgreSQL server here: {name} not found")
    return found


@pytest.fixture
def address() -> Iterator[str]:
    """A database whose user and name are the compose file's; its address as .env has it."""
    pytest.importorskip("psycopg", reason="PostgreSQL's driver psycopg is not installed")
    initdb, pg_ctl, psql = program("initdb"), program("pg_ctl"), program("psql")
    service = yaml.safe_load((DOCKER / "compose.server.yaml").read_text())["services"]["database"][
        "environment"
    ]
    folder = Path(tempfile.mkdtemp(prefix="fedgc-pg-"))
    as_user: dict[str, object] = {}
    if os.geteuid() == 0:  # the server refuses to run as root
        try:
            owner = pwd.getpwnam("postgres")
        except KeyError:
            pytest.skip("PostgreSQL refuses to run as root, and there is no user postgres")
        os.chown(folder, owner.pw_uid, owner.pw_gid)
        as_user = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}

    def run(*words: str) -> None:
        with (folder / "log").open("ab") as log:
            subprocess.run(words, check=True, stdout=log, stderr=log, cwd=folder, timeout=60, **as_user)

    data, secret = str(folder / "data"), folder / "secret"
    secret.write_text(PASSWORD)
    secret.chmod(0o644)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    try:
        user = service["POSTGRES_USER"]
        run(
            initdb,
            "-D",
            data,
            "-U",
            user,
            "-A",
            "scram-sha-256",
            f"--pwfile={secret}",
            "-E",
            "UTF8",
            "--no-sync",
        )
        options = (
            f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories={folder} -c fsync=off"
        )
        run(pg_ctl, "-D", data, "-o", options, "-l", str(folder / "server"), "-w", "start")
        login = f"postgresql://{user}:{quote(PASSWORD, safe='')}@127.0.0.1:{port}"
        run(psql, f"{login}/postgres", "-c", f"CREATE DATABASE {service['POSTGRES_DB']}")
        example = re.search(r"^# FEDGC_DB=(.*)$", (DOCKER / ".env.example").read_text(), re.MULTILINE)
        assert example is not None
        shown = example.group(1).replace("PASSWORD", quote(PASSWORD, safe=""))
        yield shown.replace("@database/", f"@127.0.0.1:{port}/")
        run(pg_ctl, "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.contract
@pytest.mark.slow
def test_a_run_keeps_its_rows_in_the_database_that_the_compose_file_offers(address: str):
    settings = {"rounds": 2, "chunks": 4, "replicas": 2, "min-devices": 2, "run": "on-postgresql"}
    with LocalFederation(nodes=2, environment={"FEDGC_DB": address}) as federation:
        run = federation.submit(settings)
        assert federation.wait(run, 180.0) == "finished:completed"
    with Store.open(address) as store:
        assert store.run("on-postgresql").state == "completed"
        assert [each.row.outcome for each in store.rounds("on-postgresql")] == ["synced", "synced"]
        assert PASSWORD not in store.name
