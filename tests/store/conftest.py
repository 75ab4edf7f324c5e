"""What the store's tests share: the databases that one suite runs against, and rows to write."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from fedgc.history import DeviceRow, RoundRow
from fedgc.store.database import Store

NUMBERS = count(1)


def _program(name: str) -> str | None:
    debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(debian[-1]) if debian else None)


@dataclass(frozen=True)
class Postgres:
    """A server of our own, on a socket in a folder of its own."""

    folder: Path

    def url(self, schema: str) -> str:
        return f"postgresql+psycopg://postgres@/postgres?host={self.folder}&options=-csearch_path%3D{schema}"

    def fresh(self) -> str:
        import psycopg

        schema = f"test_{next(NUMBERS)}"
        with psycopg.connect(f"host={self.folder} user=postgres dbname=postgres", autocommit=True) as server:
            server.execute(f"CREATE SCHEMA {schema}".encode())
        return self.url(schema)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    pytest.importorskip("psycopg", reason="PostgreSQL's driver psycopg is not installed")
    initdb, pg_ctl = _program("initdb"), _program("pg_ctl")
    if initdb is None or pg_ctl is None:
        pytest.skip("no PostgreSQL server here: neither initdb nor pg_ctl found")
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
        log = (folder / "log").open("ab")
        with log:
            subprocess.run(words, check=True, stdout=log, stderr=log, cwd=folder, timeout=60, **as_user)

    data = str(folder / "data")
    try:
        run(initdb, "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
        options = f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off"
        run(pg_ctl, "-D", data, "-o", options, "-l", str(folder / "server"), "-w", "start")
        yield Postgres(folder)
        run(pg_ctl, "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["file", "memory", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database of each kind."""
    if request.param == "postgresql":
        return request.getfixturevalue("postgres").fresh()
    return "sqlite://" if request.param == "memory" else str(tmp_path / "store.db")


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store.open(url) as opened:
        yield opened


@pytest.fixture
def file_store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path / "store.db")) as opened:
        yield opened


@pytest.fixture
def a_device() -> Callable[..., DeviceRow]:
    def make(device: str = "a", **changes: object) -> DeviceRow:
        usual = {"finished": 4, "counted": 3, "steps": 16, "busy_s": 1.6, "step_s": 0.1, "spread_s": 0.01}
        moved = {"upload_s": 0.5, "download_s": 0.25, "up_bytes": 1000, "down_bytes": 2000, "link": "session"}
        return DeviceRow(device, **{**usual, **moved, **changes})

    return make


@pytest.fixture
def a_row() -> Callable[..., RoundRow]:
    def make(number: int, *devices: DeviceRow, **changes: object) -> RoundRow:
        values = {
            "round": number, "version": number, "started": 10.0 * number, "working_s": 2.0,
            "collecting_s": 0.5, "outcome": "synced", "chunks": 8, "covered": 8, "short": (), "replicas": 2,
            "blocks": 1, "needed": 2, "amplification": 1.5, "error": 1e-4, "loss": 0.7, "samples": 640,
            "skips": 3, "takes": 1, "pruned": 0, "repairs": 0, "reason": "covered", "devices": devices,
        }  # fmt: skip
        return RoundRow(**{**values, **changes})

    return make
