"""A real PostgreSQL server for tests: without a password on a socket, with one on loopback."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

NUMBERS = count(1)
PASSWORD = "it's a secret/@:"


@dataclass(frozen=True)
class Postgres:
    """A server that runs; its folder holds the socket."""

    folder: Path
    port: int
    user: str

    def fresh(self) -> str:
        """Return the address of an empty schema."""
        schema = f"test_{next(NUMBERS)}"
        self.carry_out(f"CREATE SCHEMA {schema}")
        server = f"postgresql+psycopg://{self.user}@/postgres"
        return f"{server}?host={self.folder}&port={self.port}&options=-csearch_path%3D{schema}"

    def carry_out(self, statement: str) -> None:
        import psycopg

        where = f"host={self.folder} port={self.port} user={self.user} dbname=postgres"
        with psycopg.connect(where, autocommit=True) as server:
            server.execute(statement.encode())


@contextmanager
def running(user: str) -> Iterator[Postgres]:
    """Start a server whose first user is this one; skip the test where there is none to start."""
    pytest.importorskip("psycopg", reason="PostgreSQL's driver psycopg is not installed")
    initdb, pg_ctl = _program("initdb"), _program("pg_ctl")
    folder = Path(tempfile.mkdtemp(prefix="fedgc-pg-"))
    as_user = _no_root(folder)

    def run(*words: str) -> None:
        with (folder / "log").open("ab") as log:
            subprocess.run(words, check=True, stdout=log, stderr=log, cwd=folder, timeout=60, **as_user)

    data, secret = str(folder / "data"), folder / "secret"
    secret.write_text(PASSWORD)
    secret.chmod(0o644)  # in a folder that is its user's alone
    made = Postgres(folder, _free_port(), user)
    try:
        access = ["--auth-local=trust", "--auth-host=scram-sha-256", f"--pwfile={secret}"]
        run(initdb, "-D", data, "-U", user, *access, "-E", "UTF8", "--no-sync")
        places = {"listen_addresses": "127.0.0.1", "port": made.port, "unix_socket_directories": folder}
        options = " ".join(f"-c {name}={value}" for name, value in {**places, "fsync": "off"}.items())
        run(pg_ctl, "-D", data, "-o", options, "-l", str(folder / "server"), "-w", "start")
        yield made
        run(pg_ctl, "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _program(name: str) -> str:
    debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    found = shutil.which(name) or (str(debian[-1]) if debian else None)
    if found is None:
        pytest.skip(f"no PostgreSQL server here: {name} not found")
    return found


def _no_root(folder: Path) -> dict[str, object]:
    """Return as whom the server runs: it refuses to be root."""
    if os.geteuid() != 0:
        return {}
    try:
        owner = pwd.getpwnam("postgres")
    except KeyError:
        pytest.skip("PostgreSQL refuses to run as root, and there is no user postgres")
    os.chown(folder, owner.pw_uid, owner.pw_gid)
    return {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
