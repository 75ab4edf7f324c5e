"""Test a deployed server's and client's startup checks, commands and health checks."""

import os
import shutil
import sqlite3
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fedgc.cli.commands import app
from fedgc.deploy import processes as deployed
from fedgc.deploy.key_files import Keyring
from fedgc.deploy.processes import ClientPlace, ServerPlace, Started, client_health, hold, save_process
from fedgc.deploy.superlink import connection
from fedgc.errors import EdgeFailed, Unusable
from fedgc.flower import heartbeat as pulse
from tests.links.web_server import server

DAY_S = 86_400.0
EVERYWHERE = "0.0.0.0"  # noqa: S104  only a value here, no server binds it


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Keyring:
    made = Keyring(tmp_path_factory.mktemp("keys"))
    made.begin(("localhost",), time.time(), 30)
    made.make_client("ward-3")
    return made


@pytest.fixture
def place(ring: Keyring, tmp_path: Path) -> Callable[..., ClientPlace]:
    def make(address: str, **changes: object) -> ClientPlace:
        (tmp_path / "state").mkdir(exist_ok=True)
        (tmp_path / "cache").mkdir(exist_ok=True)
        usual = {"keys": ring.folder / "clients" / "ward-3", "state": tmp_path / "state"}
        more = {"cache": tmp_path / "cache", "name": "ward-3", "server": address}
        return ClientPlace(**{**usual, **more, **changes})

    return make


# ---- a client


def test_well_configured_client_passes_check(ring: Keyring, place: Callable[..., ClientPlace]):
    with server(ring) as address:
        assert place(address).check(time.time) == f"{address} answers and is ours"


def test_unreachable_server_does_not_end_client(place: Callable[..., ClientPlace]):
    said = place("localhost:9").check(time.time)
    assert said.startswith("localhost:9 does not answer")
    assert said.endswith("the SuperNode goes on trying")


def test_proxy_without_superlink_counts_as_unreachable(ring: Keyring, place: Callable[..., ClientPlace]):
    with server(ring, status=502) as address:
        assert "saw status 502 for /health" in place(address).check(time.time)


def test_foreign_certificate_is_refused_and_named(
    ring: Keyring, place: Callable[..., ClientPlace], tmp_path: Path
):
    other = Keyring(tmp_path / "other")
    other.begin(("localhost",), time.time(), 30)
    with server(other) as address, pytest.raises(EdgeFailed, match=r"certificate is refused: .*issuer"):
        place(address).check(time.time)


def test_certificate_for_other_name_is_refused(ring: Keyring, place: Callable[..., ClientPlace]):
    with server(ring) as address:
        port = address.partition(":")[2]
        with pytest.raises(EdgeFailed, match=r"127\.0\.0\.1.*certificate is refused"):
            place(f"127.0.0.1:{port}").check(time.time)


def test_certificate_outside_validity_names_local_clock(place: Callable[..., ClientPlace], tmp_path: Path):
    old = Keyring(tmp_path / "old")
    old.begin(("localhost",), time.time() - 100 * DAY_S, 30)
    old.make_client("ward-3")
    said = r"expired; this machine's clock says \d{4}-"
    with server(old) as address, pytest.raises(EdgeFailed, match=said) as refused:
        place(address, keys=old.folder / "clients" / "ward-3").check(time.time)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("ahead_s", [-DAY_S, -20.0, 400.0, DAY_S])
def test_wrong_clock_is_reported_with_direction(
    ring: Keyring, place: Callable[..., ClientPlace], ahead_s: float
):
    said = rf"clock is \d+ s {'behind' if ahead_s > 0 else 'ahead of'} the server's, needed at most 5 s"
    with server(ring, ahead_s=ahead_s) as address, pytest.raises(EdgeFailed, match=said):
        place(address).check(time.time)


def test_clock_offset_within_flower_tolerance_passes(ring: Keyring, place: Callable[..., ClientPlace]):
    with server(ring, ahead_s=200.0) as address:
        assert place(address).check(time.time).endswith("is ours")


@pytest.mark.parametrize("missing", ["ca.pem", "client.key"])
def test_missing_key_is_named(place: Callable[..., ClientPlace], tmp_path: Path, ring: Keyring, missing: str):
    (tmp_path / "keys").mkdir()
    for name in {"ca.pem", "client.key"} - {missing}:
        (tmp_path / "keys" / name).write_bytes((ring.folder / "clients" / "ward-3" / name).read_bytes())
    with pytest.raises(EdgeFailed, match=f"{missing}: No such file"):
        place("localhost:9", keys=tmp_path / "keys").check(time.time)


def test_key_of_other_kind_is_named(place: Callable[..., ClientPlace], tmp_path: Path, ring: Keyring):
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "ca.pem").write_bytes((ring.folder / "authority" / "ca.pem").read_bytes())
    (tmp_path / "keys" / "client.key").write_bytes((ring.folder / "proxy" / "server.key").read_bytes())
    with pytest.raises(EdgeFailed, match=r"client\.key: needed the key that `fedgc keys client` makes"):
        place("localhost:9", keys=tmp_path / "keys").check(time.time)


def test_missing_or_full_folder_is_named(
    place: Callable[..., ClientPlace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(EdgeFailed, match=r"FEDGC_CACHE .*/none: No such file or directory, needed a folder"):
        place("localhost:9", cache=tmp_path / "none" / "none").check(time.time)
    monkeypatch.setattr(deployed, "SPACE_BYTES", 2**60)
    with pytest.raises(EdgeFailed, match=r"state: \d+ MB free, needed at least"):
        place("localhost:9").check(time.time)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"server": ""}, "--server (FEDGC_SERVER): is not set, needed the server's address"),
        ({"server": "fl.example.org"}, "--server (FEDGC_SERVER): saw 'fl.example.org'"),
        ({"server": "https://fl.example.org:443"}, "--server (FEDGC_SERVER): saw"),
        ({"server": "fl.example.org:99999"}, "--server (FEDGC_SERVER): saw"),
        ({"name": ""}, "--name (FEDGC_NAME): saw ''"),
        ({"name": "ward 3"}, "--name (FEDGC_NAME): saw 'ward 3'"),
        ({"name": 'x"; evil="1'}, "FEDGC_NAME"),
        (
            {"node_config": "data=/data/ward.pt"},
            "--node-config (FEDGC_NODE_CONFIG): saw data=/data/ward.pt, needed",
        ),
        ({"node_config": 'data="/data/ward.pt" part'}, "--node-config (FEDGC_NODE_CONFIG): saw part, needed"),
        ({"node_config": "part=0 part=1"}, "(FEDGC_NODE_CONFIG): saw part=0 part=1, needed key=value"),
        ({"node_config": 'name="b"'}, "(FEDGC_NODE_CONFIG): saw name, needed --name (FEDGC_NAME) in"),
        ({"node_config": 'cache="/c"'}, "(FEDGC_NODE_CONFIG): saw cache, needed --cache (FEDGC_CACHE) in"),
        ({"node_config": 'identity="a.key"'}, "saw identity, needed --state (FEDGC_STATE), the folder"),
        (
            {"node_config": 'policy="a.toml"', "policy": Path("b.toml")},
            "saw policy, needed --policy (FEDGC_POLICY) in its place",
        ),
        ({"node_config": "leave-grace-s=-1"}, "leave-grace-s: saw -1, needed seconds, 0 or more"),
        ({"node_config": 'leave-grace-s="9"'}, "leave-grace-s: saw '9', needed seconds, 0 or more"),
        ({"state": Path('/a"b')}, '(FEDGC_NODE_CONFIG): saw b/identity.key", needed key=value'),
        ({"insecure": True}, "--insecure: saw server fl.example.org:443, needed a loopback address"),
    ],
)
def test_missing_or_wrong_variable_gives_one_line(changes: dict[str, object], sentence: str):
    usual = {"server": "fl.example.org:443", "name": "a", "keys": Path(), "state": Path(), "cache": Path()}
    with pytest.raises(Unusable) as refused:
        ClientPlace(**{**usual, **changes})
    assert sentence in str(refused.value)


@pytest.mark.parametrize("insecure", [False, True])
def test_client_command_is_accepted_by_flower(place: Callable[..., ClientPlace], insecure: bool):
    program = import_module("flwr.supernode.cli.flower_supernode")

    words = place("127.0.0.1:443", node_config="pace-s=0.5", insecure=insecure).program().words
    assert words[2:6] == ("--alone", "--leave", "20.0", "flower-supernode")
    read = program._parse_args_run_supernode().parse_args(words[6:])
    assert read.insecure is insecure
    assert bool(read.root_certificates) is bool(read.auth_supernode_private_key) is not insecure
    assert read.node_config.endswith("pace-s=0.5")


def test_grace_time_of_node_config_replaces_that_of_option(place: Callable[..., ClientPlace]):
    parse = import_module("flwr.common.config").parse_config_args

    words = place("127.0.0.1:443", node_config="leave-grace-s=60 part=0").program().words
    assert words[words.index("--leave") + 1] == "60"
    told = parse([words[words.index("--node-config") + 1]])
    assert (told["name"], told["leave-grace-s"], told["part"]) == ("ward-3", 60, 0)


@pytest.mark.parametrize("given", ["", 'data-cache="/data/cache"'])
def test_data_of_site_is_kept_in_cache_folder(place: Callable[..., ClientPlace], given: str):
    parse = import_module("flwr.common.config").parse_config_args

    here = place("127.0.0.1:443", node_config=given)
    words = here.program().words
    told = parse([words[words.index("--node-config") + 1]])
    assert told["data-cache"] == ("/data/cache" if given else str(here.cache / "chunks"))


def guarding(program: Started) -> Path:
    """Return the program that a SuperNode starts for each app."""
    found = shutil.which("flwr-clientapp", path=program.environment["PATH"])
    assert found
    return Path(found)


def test_client_of_federation_checks_apps(place: Callable[..., ClientPlace]):
    """Its descriptor may pin the task; a policy may also be named in the node config."""
    for named in ('federation="all.fed" vault="a.db"', 'policy="site.toml"'):
        assert "app_guard" in guarding(place("a.org:443", node_config=named).program()).read_text()


def test_two_clients_of_one_machine_have_ports_of_their_own(place: Callable[..., ClientPlace]):
    programs = [place("127.0.0.1:443").program() for _ in range(2)]
    ports = [int(each.words[each.words.index("--port") + 1]) for each in programs]
    assert [f"127.0.0.1:{port}" for port in ports] == [each.address for each in programs]
    assert len(set(ports)) == 2


@pytest.mark.parametrize("role", ["client", "server"])
def test_state_of_running_process_is_refused_to_another(place: Callable[..., ClientPlace], role: str):
    here = place("127.0.0.1:443")
    becomes = [sys.executable, "-c", "print(flush=True); input()"]
    program = (
        "import os, sys; from pathlib import Path; from fedgc.deploy.processes import hold, save_process;"
        "hold(path := Path(sys.argv[1])); save_process(path, os.getpid(), '127.0.0.1:9');"
        "os.execv(sys.argv[2], sys.argv[2:])"
    )
    client = subprocess.Popen(
        [sys.executable, "-c", program, str(here.state), *becomes],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert client.stdout is not None
    client.stdout.readline()
    own = ["--server", "127.0.0.1:9", "--name", "ward-3", "--cache", str(here.cache)]
    words = [*(own if role == "client" else ()), "--state", str(here.state), "--insecure"]
    said = subprocess.run(
        [sys.executable, "-m", "fedgc.cli", "deploy", role, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,  # a SuperLink that is not refused serves on
    )
    assert said.stderr.splitlines()[1:] == [
        f"fedgc: FEDGC_STATE {here.state}: saw process {client.pid} run with it, needed its end, "
        "or another folder"
    ]
    assert said.returncode == 1
    assert (here.state / "process").read_text() == f"{client.pid}\n"
    client.communicate(b"\n")
    hold(here.state)


def test_client_with_policy_checks_it_and_its_apps(place: Callable[..., ClientPlace], tmp_path: Path):
    policy = tmp_path / "site.toml"
    policy.write_text("[limits]\nbytes-per-day = 1000\n")
    here = place("127.0.0.1:443", policy=policy, insecure=True)
    assert here.check(time.time) == "plain, on loopback alone"
    started = here.program()
    assert f'policy="{policy}"' in " ".join(started.words)
    assert "app_guard" in guarding(started).read_text()
    policy.write_text("[limits]\nbytes-per-day = 0\n")
    with pytest.raises(Unusable, match=r"limits\.bytes-per-day"):
        here.check(time.time)
    policy.write_text('[audit]\nlog = "/proc/site.audit.jsonl"\n')
    with pytest.raises(EdgeFailed, match=r"audit log /proc/site\.audit\.jsonl"):
        here.check(time.time)


# ---- a server


@pytest.mark.parametrize("insecure", [False, True])
def test_server_command_is_accepted_by_flower(insecure: bool):
    program = import_module("flwr.superlink.cli.flower_superlink")

    started = ServerPlace("a.org:443", Path("/keys"), Path("/state"), "127.0.0.1", insecure).program()
    read = program._parse_args_run_superlink().parse_args(started.words[1:])
    assert (read.insecure, read.enable_supernode_auth) == (insecure, not insecure)
    assert read.database == "/state/superlink.db"
    assert read.runtime_dependency_install is False
    assert set(started.environment) == (
        set() if insecure else {"FEDGC_BIND", "FEDGC_ADVERTISE", "FEDGC_AUTHORITY"}
    )


@pytest.mark.parametrize("earlier", [False, True])
def test_database_of_superlink_is_private(tmp_path: Path, earlier: bool):
    """It holds models and updates that travel in Flower messages, also one that was left open before."""
    state = tmp_path / "state"
    database = state / "superlink.db"
    if earlier:
        state.mkdir(mode=0o755)
        database.touch(mode=0o644)
    ServerPlace("", Path("/keys"), state, "127.0.0.1", insecure=True).check(time.time())
    with closing(sqlite3.connect(database)) as flowers:
        flowers.execute("PRAGMA journal_mode=WAL")
        flowers.execute("CREATE TABLE message (content BLOB)")
        names = {"superlink.db", "superlink.db-wal", "superlink.db-shm"}
        assert {each.name: each.stat().st_mode & 0o777 for each in state.iterdir()} == dict.fromkeys(
            names, 0o600
        )
    assert state.stat().st_mode & 0o777 == (0o755 if earlier else 0o700), "that of an existing folder stays"


def test_plain_connection_is_refused_beyond_loopback():
    with pytest.raises(Unusable, match=r"--insecure: saw host 0\.0\.0\.0, needed a loopback address"):
        ServerPlace("", Path("/keys"), Path("/state"), EVERYWHERE, insecure=True)


def test_server_must_know_address_dialed_by_clients():
    with pytest.raises(
        Unusable, match=r"--advertise \(FEDGC_ADVERTISE\): is not set, needed the address that clients dial"
    ):
        ServerPlace("", Path("/keys"), Path("/state"), EVERYWHERE)


def test_server_keys_are_read_before_start(ring: Keyring, tmp_path: Path):
    place = ServerPlace("a.org:443", ring.folder / "server", tmp_path, EVERYWHERE)
    assert place.check(time.time()).startswith("clients dial a.org:443, the certificate lasts")
    lacks = "which does not name a.org: clients refuse it unless a proxy has another"
    assert place.check(time.time()).endswith(lacks)
    named = ServerPlace("localhost:443", ring.folder / "server", tmp_path, EVERYWHERE)
    assert "does not name" not in named.check(time.time())
    with pytest.raises(
        EdgeFailed, match=r"server\.pem: it begins in 10 days, or this machine's clock is wrong"
    ):
        place.check(time.time() - 10.5 * DAY_S)
    with pytest.raises(EdgeFailed, match=r"it ended \d+ days ago, or this machine's clock is wrong"):
        place.check(time.time() + 4000 * DAY_S)
    mixed = tmp_path / "mixed"
    other = Keyring(tmp_path / "other")
    other.begin(("localhost",), time.time(), 30)
    mixed.mkdir()
    for name, whose in (("ca.pem", other), ("server.pem", ring), ("server.key", ring)):
        (mixed / name).write_bytes((whose.folder / "server" / name).read_bytes())
    with pytest.raises(EdgeFailed, match=r"not signed by ca\.pem beside it"):
        ServerPlace("a.org:443", mixed, tmp_path, EVERYWHERE).check(time.time())
    for name, whose in (("ca.pem", ring), ("server.key", other)):
        (mixed / name).write_bytes((whose.folder / "server" / name).read_bytes())
    with pytest.raises(EdgeFailed, match=r"server\.key: does not fit server\.pem beside it"):
        ServerPlace("a.org:443", mixed, tmp_path, EVERYWHERE).check(time.time())


def test_flwr_beside_server_is_found(ring: Keyring, tmp_path: Path):
    ServerPlace("a.org:443", Path("/keys"), tmp_path, EVERYWHERE).configure(tmp_path / "flower")
    told = tomllib.loads((tmp_path / "flower" / "config.toml").read_text())["superlink"]
    assert told[told["default"]] == {"address": "127.0.0.1:9092", "root-certificates": "/keys/ca.pem"}
    beside = {"address": "server:9092", "root-certificates": "/keys/ca.pem"}
    assert told["server"] == beside, "for the service `run` of docker/compose.server.yaml"


def test_other_connections_of_flower_stay(tmp_path: Path):
    path = tmp_path / "config.toml"
    path.write_text(
        '[superlink]\ndefault = "ward"\n[superlink.ward]\naddress = "a.org:1"\ninsecure = true\n'
        '[superlink.local]\naddress = "b.org:1"\n[other]\nnumber = 1\n'
    )
    place = ServerPlace("", Path("/keys"), tmp_path, "127.0.0.1", insecure=True)
    assert place.configure(tmp_path) == path
    assert tomllib.loads(path.read_text()) == {
        "superlink": {
            "default": "ward",
            "ward": {"address": "a.org:1", "insecure": True},
            "local": {"address": "127.0.0.1:9092", "insecure": True},
        },
        "other": {"number": 1},
    }
    path.write_text("superlink = 1\n")
    with pytest.raises(Unusable, match=r"config\.toml: saw superlink = 1, needed a table"):
        place.configure(tmp_path)


@pytest.mark.parametrize("home", [None, ""])
def test_server_without_flower_home_uses_that_of_user(tmp_path: Path, home: str | None):
    (tmp_path / "here").mkdir()
    (tmp_path / "state" / "address").mkdir(parents=True)  # ends the command before it is a SuperLink
    others = {name: each for name, each in os.environ.items() if name != "FLWR_HOME"}
    said = subprocess.run(
        [sys.executable, "-m", "fedgc.cli", "deploy", "server", "--insecure", "--state", "../state"],
        cwd=tmp_path / "here",
        env={**others, "HOME": str(tmp_path), **({} if home is None else {"FLWR_HOME": home})},
        capture_output=True,
        text=True,
        check=False,
    )
    told = f"fedgc server: the connection `local` is in {tmp_path}/.flwr/config.toml"
    assert told in said.stderr.splitlines()
    there = connection("local", {"FLWR_HOME": str(tmp_path / ".flwr")})
    assert (there.address, there.insecure) == ("127.0.0.1:9092", True)
    assert not any((tmp_path / "here").iterdir())


@pytest.mark.parametrize(
    ("host", "bind", "own"),
    [
        ("10.0.0.5", "10.0.0.5:9094", "10.0.0.5:9092"),
        (EVERYWHERE, "0.0.0.0:9094", "127.0.0.1:9092"),
        ("::1", "[::1]:9094", "[::1]:9092"),
        ("::", "[::]:9094", "[::1]:9092"),
    ],
)
def test_server_is_reached_where_it_listens(tmp_path: Path, host: str, bind: str, own: str):
    here = ServerPlace("a.org:443", Path("/keys"), tmp_path, host)
    started = here.program()
    assert (started.environment["FEDGC_BIND"], started.address) == (bind, own)
    here.configure(tmp_path)
    assert connection("local", {"FLWR_HOME": str(tmp_path)}).address == own


def test_health_of_server_is_asked_where_it_listens(running: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    save_process(running, int((running / "process").read_text()), "[::1]:9")
    with pytest.raises(EdgeFailed, match=r"^\[::1\]:9 does not answer"):
        deployed.server_health(running, running, insecure=True)


def test_certificate_without_own_address_of_server_is_refused(ring: Keyring, tmp_path: Path):
    assert ServerPlace("a.org:443", ring.folder / "server", tmp_path, "::").check(time.time())
    said = r"server\.pem: saw the names localhost, .*needed 10\.0\.0\.5 too, by which this machine reaches"
    with pytest.raises(EdgeFailed, match=said):
        ServerPlace("a.org:443", ring.folder / "server", tmp_path, "10.0.0.5").check(time.time())


def test_relative_folders_are_found_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    here = ServerPlace("a.org:443", Path("keys"), Path("state"), EVERYWHERE)
    here.configure(tmp_path)
    own = connection("local", {"FLWR_HOME": str(tmp_path)})
    assert own.certificates == tmp_path / "keys" / "ca.pem"
    started = here.program()
    assert started.environment["FEDGC_AUTHORITY"] == str(own.certificates)
    assert str(tmp_path / "state" / "superlink.db") in started.words

    policy = Path("site.toml")
    client = ClientPlace("a.org:443", "a", Path("keys"), Path("state"), Path("cache"), policy=policy)
    told = " ".join(client.program().words)
    for each in ("keys/client.key", "state/identity.key", "cache/cache", "site.toml"):
        assert str(tmp_path / each) in told


# ---- health


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state folder whose process has a child that looks like Flower's executor; the SuperNode answers."""
    program = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'input()', 'flower-superexec']);"
        "print(flush=True); p.wait()"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    parent.stdout.readline()
    save_process(tmp_path, parent.pid, "127.0.0.1:9")
    monkeypatch.setattr(deployed, "_ask", lambda *_: None)
    yield tmp_path
    parent.communicate(b"\n")


def test_client_without_session_is_healthy_while_flower_answers(running: Path):
    assert client_health(running, time.time()).endswith("no session is open")


def test_silent_client_is_unhealthy(running: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    with pytest.raises(EdgeFailed, match=r"127\.0\.0\.1:9 does not answer"):
        client_health(running, time.time())


def test_client_on_full_disk_is_unhealthy_and_not_restarted(running: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(deployed, "SPACE_BYTES", 2**60)
    words = ["deploy", "health", "client", "--state", str(running), "--cache", str(running)]
    full = CliRunner().invoke(app, words)
    assert isinstance(full.exception, EdgeFailed)
    assert "MB free, needed at least" in str(full.exception)
    assert CliRunner().invoke(app, [*words, "--live"]).exit_code == 0


def test_hanging_engine_is_unhealthy(running: Path):
    heart = pulse.HeartbeatWriter(str(running / "pulse"), time.time)
    heart.beat(7)
    assert "7 chunks finished" in client_health(running, time.time())
    long = client_health(running, time.time() + 1800)
    assert long.startswith("the engine came round 1800 s ago"), "a step or a validation may take so long"
    with pytest.raises(EdgeFailed, match="the engine has not come round for 4000 s, needed 3600"):
        client_health(running, time.time() + 4000)
    with pytest.raises(EdgeFailed, match="not come round since its clock was 4000 s ahead, needed 3600"):
        client_health(running, time.time() - 4000)
    heart.close()
    assert client_health(running, time.time() + 4000).endswith("no session is open")


def test_heartbeat_of_ended_process_is_ignored(running: Path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (running / "pulse").write_text(f"{ended.pid} 3\n")
    assert client_health(running, time.time() + 1000).endswith("no session is open")


def test_client_without_executor_is_unhealthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(deployed, "_ask", lambda *_: None)
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    save_process(tmp_path, sleeper.pid, "127.0.0.1:9")
    with pytest.raises(EdgeFailed, match="has no flower-superexec below it"):
        client_health(tmp_path, time.time())
    sleeper.communicate(b"\n")


def test_silent_server_is_unhealthy(running: Path, ring: Keyring, monkeypatch: pytest.MonkeyPatch):
    assert deployed.server_health(ring.folder / "server", running, insecure=False).endswith("answer")
    monkeypatch.undo()
    with pytest.raises(EdgeFailed, match="does not answer"):
        deployed.server_health(ring.folder / "server", running, insecure=False)


# ---- the heartbeat


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.3, 0.9, 1.0, 4.0]), st.integers(0, 1)), max_size=30))
def test_heartbeat_is_written_every_second_and_chunk(
    tmp_path_factory: pytest.TempPathFactory, turns: list[tuple[float, int]]
):
    path = tmp_path_factory.mktemp("pulse") / "pulse"
    now, chunks = 0.0, 0
    heart = pulse.HeartbeatWriter(str(path), lambda: now)
    last: tuple[float, int] | None = None
    for pause, more in turns:
        now, chunks = now + pause, chunks + more
        path.unlink(missing_ok=True)
        heart.beat(chunks)
        due = last is None or last[1] != chunks or now >= last[0] + 1.0
        beat = pulse.last_beat(path)
        assert (beat is not None) is due
        if beat is not None:
            assert (beat.chunks, beat.process, beat.alive) == (chunks, os.getpid(), True)
            last = (now, chunks)


def test_heartbeat_is_off_without_file(tmp_path: Path):
    heart = pulse.HeartbeatWriter(None, time.time)
    heart.beat(1)
    heart.close()
    assert pulse.last_beat(tmp_path / "pulse") is None
    (tmp_path / "pulse").write_text("half")
    assert pulse.last_beat(tmp_path / "pulse") is None
