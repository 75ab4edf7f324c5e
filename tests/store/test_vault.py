import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgc.errors import EdgeFailed, Unusable
from fedgc.secagg import (
    Changes,
    Descriptor,
    Federation,
    Member,
    Quantizer,
    RingSum,
    SetUp,
    Terms,
    packets,  # fmt: skip
)
from fedgc.store.vault import PASSPHRASE_IN, Vault, key_file, secret_of

SECRET = b"correct horse battery"
FID, OTHER = b"\1" * 32, b"\2" * 32


@pytest.fixture
def path(tmp_path):
    return tmp_path / "site.vault"


def put(**values):
    return Changes(tuple(values.items()), ()).pack()


def erase(*names):
    return Changes((), names).pack()


def files(path):
    """The bytes of all files beside the vault."""
    return b"".join(each.read_bytes() for each in sorted(path.parent.iterdir()))


def test_vault_content_survives_reopen(path):
    with Vault.open(path, SECRET) as vault:
        vault.write(FID, put(a=b"one", b=b"two"))
        vault.write(FID, Changes((("a", b"three"),), ("b",)).pack())
        vault.write(OTHER, put(a=b"elsewhere"))
        identity = vault.identity()
    with Vault.open(path, SECRET) as vault:
        assert vault.records(FID) == {"a": b"three"}
        assert vault.records(OTHER) == {"a": b"elsewhere"}
        assert vault.records(b"\3" * 32) == {}
        assert vault.identity() == identity


STEPS = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from("abcd"), st.binary(max_size=9), max_size=3),
        st.sets(st.sampled_from("abcd"), max_size=2),
    ),
    max_size=6,
)


@given(steps=STEPS)
@settings(max_examples=8)
def test_vault_is_persistent_dictionary(tmp_path_factory, steps):
    path, twin = tmp_path_factory.mktemp("vault") / "v", {}
    with Vault.open(path, SECRET) as vault:
        for puts, erases in steps:
            vault.write(FID, Changes(tuple(puts.items()), tuple(sorted(erases))).pack())
            twin = {name: value for name, value in twin.items() if name not in erases} | puts
            assert vault.records(FID) == twin
    with Vault.open(path, SECRET) as vault:
        assert vault.records(FID) == twin


def test_vault_is_readable_only_by_owner(path):
    with Vault.open(path, SECRET) as vault:
        vault.write(FID, put(a=b"one"))
        assert {each.stat().st_mode & 0o777 for each in path.parent.iterdir()} == {0o600}
    path.chmod(0o640)
    with pytest.raises(Unusable, match="others can read it"):
        Vault.open(path, SECRET)


def test_files_hold_no_plain_secret(path):
    with Vault.open(path, SECRET) as vault:
        vault.write(FID, put(a=b"a secret that must not be seen"))
        identity = vault.identity()
        seen = files(path)
    for secret in (b"a secret that must not be seen", identity.secret, SECRET):
        assert secret not in seen
        assert secret not in files(path)


def test_erased_or_replaced_secret_is_overwritten(path):
    def sealed(name):
        with sqlite3.connect(path) as connection:
            query = "SELECT value FROM vault WHERE name = ?"
            return connection.execute(query, (name,)).fetchone()[0]

    with Vault.open(path, SECRET) as vault:
        vault.write(FID, put(gone=b"x" * 100, changed=b"y" * 100, large=b"z" * 20_000))
        before = [sealed(name) for name in ("gone", "changed", "large")]
        assert all(value[-64:] in files(path) for value in before)
        vault.write(FID, Changes((("changed", b"w" * 100),), ("gone", "large")).pack())
        assert (path.parent / f"{path.name}-wal").stat().st_size == 0
        left = files(path)
    assert not any(value[at : at + 32] in left for value in before for at in range(0, len(value), 1000))
    assert not any(value[-32:] in left for value in before)


def test_other_passphrase_does_not_open_vault(path):
    Vault.open(path, SECRET).close()
    with pytest.raises(Unusable, match="needed its own"):
        Vault.open(path, b"another passphrase")
    with pytest.raises(Unusable, match="saw a secret of 3 bytes"):
        Vault.open(path, b"abc")
    Vault.open(path, SECRET).close()  # a failed try leaves nothing locked


@pytest.mark.parametrize("passphrase", [b"sesam \xc3\xb6ffne dich", b"sesam \xf6ffne dich"])
def test_passphrase_may_have_any_bytes(monkeypatch, passphrase):
    monkeypatch.setitem(os.environb, PASSPHRASE_IN.encode(), passphrase)
    assert secret_of(None, os.environ) == passphrase


def test_two_processes_cannot_open_vault_at_once(path):
    with Vault.open(path, SECRET):
        script = f"""
            from pathlib import Path
            from fedgc.errors import EdgeFailed
            from fedgc.store.vault import Vault
            try:
                Vault.open(Path({str(path)!r}), {SECRET!r})
            except EdgeFailed as error:
                print(error)
        """
        out = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
        )
    assert "another process has it" in out.stdout
    Vault.open(path, SECRET).close()


def test_linked_vault_is_refused(path):
    Vault.open(path, SECRET).close()
    alias = path.with_name("alias")
    for make in (alias.symlink_to, alias.hardlink_to):
        make(path)
        with pytest.raises(Unusable, match="saw a link"):
            Vault.open(alias, SECRET)
        alias.unlink()
    Vault.open(path, SECRET).close()


def test_moved_or_changed_record_is_detected(path):
    with Vault.open(path, SECRET) as vault:
        vault.write(FID, put(a=b"one", b=b"two"))
    moved = "UPDATE vault SET value = (SELECT value FROM vault WHERE name = 'a') WHERE name = 'b'"
    for change, scope in [
        (moved, FID),
        ("UPDATE vault SET scope = '" + "02" * 32 + "' WHERE name = 'a'", OTHER),
        ("UPDATE vault SET value = x'00' WHERE name = 'b'", FID),
    ]:
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(change)
        with Vault.open(path, SECRET) as vault, pytest.raises(EdgeFailed, match="changed from outside"):
            vault.records(scope)


def test_file_of_other_program_is_refused(path):
    path.write_bytes(b"not a database, but long enough to look like one" * 100)
    path.chmod(0o600)
    with pytest.raises(Unusable, match="is not a database"):
        Vault.open(path, SECRET)


def test_damaged_vault_is_not_to_be_restored(path):
    with Vault.open(path, SECRET) as vault:
        vault.write(FID, put(a=bytes(10_000)))
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(EdgeFailed, match=r"vault sqlite.*: is damaged; never restore a copy") as damaged:
        Vault.open(path, SECRET)
    assert "backup" not in str(damaged.value)


def test_uncreatable_folder_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Unusable, match="needed a file to read and write"):
        Vault.open(tmp_path / "file" / "vault", SECRET)


def test_key_file_must_be_private(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(SECRET)
    path.chmod(0o600)
    assert key_file(path) == SECRET
    path.chmod(0o644)
    with pytest.raises(Unusable, match="others can read it"):
        key_file(path)
    with pytest.raises(Unusable, match="needed one to read"):
        key_file(tmp_path / "none")


WORKER = """
import hashlib, os, signal, sys
from pathlib import Path
import numpy as np
from fedgc.messages import Persist
from fedgc.secagg import Client, Descriptor
from fedgc.secagg import packets
from fedgc.store.vault import Vault

folder, name, dies = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
vault = Vault.open(folder / f"{name}.vault", b"passphrase of " + name.encode())
federation = Descriptor.unpack((folder / "descriptor").read_bytes()).federation
client = Client.start(federation, vault.identity(), vault.records(federation.fid))

def do(step, point):
    global client
    client, todo = step
    for each in todo:
        if isinstance(each, Persist):
            if dies == f"before {point}":
                os.kill(os.getpid(), signal.SIGKILL)
            vault.write(federation.fid, each.record)
            if dies == f"after {point}":
                os.kill(os.getpid(), signal.SIGKILL)
        else:
            content = each.content if isinstance(each.content, bytes) else each.content[:].tobytes()
            sys.stdout.write(content.hex() + chr(10))
            sys.stdout.flush()

for line in sys.stdin:
    kind, *rest = line.split()
    try:
        if kind == "begin":
            do(client.begin(packets.Begin.unpack(bytes.fromhex(rest[0])), bytes.fromhex(rest[1])), kind)
            print("begun", flush=True)
        elif kind == "upload":
            update = np.full(int(rest[0]), float(rest[1]), np.float32)
            do(client.upload(update, 1, client.state.start, os.urandom(32)), kind)
        elif kind in ("agree", "unlock"):
            packet = getattr(packets, kind.title()).unpack(bytes.fromhex(rest[0]))
            do(getattr(client, kind)(packet), kind)
        elif kind == "open":
            do(client.open(packets.Open.unpack(bytes.fromhex(rest[0])), 1000.0, os.urandom(32)), kind)
        elif kind == "join":
            do(client.join(packets.Roster.unpack(bytes.fromhex(rest[0])), 1000.0, os.urandom(32)), kind)
    except Exception as error:
        print("refused", type(error).__name__, flush=True)
"""


class MaskedClient:
    """A real process with a real vault, that can be killed and started again."""

    def __init__(self, folder, name, dies="never"):
        self.folder, self.name = folder, name
        self.start(dies)

    def start(self, dies="never"):
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(self.folder), self.name, dies],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def ask(self, *words):
        """Return its answer, or nothing if it died."""
        try:
            self.process.stdin.write(" ".join(map(str, words)) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return ""
        return self.process.stdout.readline().strip()

    def again(self, dies="never"):
        self.stop()
        self.start(dies)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@pytest.fixture
def consortium(tmp_path):
    """Four sites as processes, whose set-up is done."""
    names = [f"site {at}" for at in range(4)]
    identities = []
    for name in names:
        with Vault.open(tmp_path / f"{name}.vault", b"passphrase of " + name.encode()) as vault:
            identities.append(vault.identity())
    members = tuple(Member(n, i.public) for n, i in zip(names, identities, strict=True))
    quantizer = Quantizer(1.0, 20, 32, 1)
    federation = Federation(members, 3, 3, 4, quantizer)
    descriptor = Descriptor(federation).endorse(identities[0])
    (tmp_path / "descriptor").write_bytes(descriptor.pack())
    sites = [MaskedClient(tmp_path, name) for name in names]
    setup = SetUp(federation, 1)
    for site in sites:
        advert = bytes.fromhex(site.ask("open", setup.packet().pack().hex()))
        setup = setup.admit(packets.Advert.unpack(advert), 1000.0)
    setup, roster = setup.roster()
    for site in sites:
        setup = setup.receive(packets.Deal.unpack(bytes.fromhex(site.ask("join", roster.pack().hex()))))
    yield federation, sites, setup.close()
    for site in sites:
        site.stop()


def asked(site, *words):
    """Ask; if that kills it, start it again and ask once more. A refusal says nothing."""
    said = site.ask(*words)
    if not said:
        site.again()
        said = site.ask(*words)
    return "" if said.startswith("refused") else said


def exchange_with(consortium, number, dies):
    """Run an exchange in which site 0 is killed at a point, started again, and asked once more."""
    federation, sites, epoch = consortium
    sites[0].again(dies)
    model = bytes([number]) * 32
    exchange, out = epoch.begin(number, range(4), Terms(30, b"", model))
    ring, survivors = RingSum(federation.quantizer, 30), []
    for member, site in enumerate(sites):
        asked(site, "begin", out[member].pack().hex(), model.hex())
        vector = asked(site, "upload", 30, (member + 1) / 8)
        if vector:
            ring.add(np.frombuffer(bytes.fromhex(vector), "<u4"))
            survivors.append(member)
    exchange, agree = exchange.agree(survivors)
    for member in survivors:
        exchange = exchange.sign(member, bytes.fromhex(asked(sites[member], "agree", agree.pack().hex())))
    unlock = exchange.unlock().pack().hex()
    for member in survivors:
        opened = packets.Opened.unpack(bytes.fromhex(asked(sites[member], "unlock", unlock)))
        exchange = exchange.open(opened)
    ring.remove(exchange.masks())
    mean, _ = ring.mean()
    return survivors, float(np.abs(mean - np.mean([(m + 1) / 8 for m in survivors])).max())


def test_12_site_killed_near_record_counts_once_or_not_at_all(consortium):
    """Killed after the record of the upload, it never masks that exchange again; else it is counted."""
    bound = 4 * 1.01 / (2**19 - 1)
    kills = ["after upload", "before upload", "after agree", "before unlock"]
    for number, dies in enumerate(kills, start=1):
        survivors, error = exchange_with(consortium, number, dies)
        assert survivors == ([1, 2, 3] if dies == "after upload" else [0, 1, 2, 3])
        assert error <= bound


@pytest.mark.parametrize(("dies", "gave"), [("after unlock", True), ("before unlock", False)])
def test_14_site_killed_near_share_record_is_consistent(consortium, dies, gave):
    """Sent or not: shares that may have been sent could separate two sums."""
    _, sites, epoch = consortium
    model = bytes(32)
    exchange, out = epoch.begin(1, range(4), Terms(30, b"", model))
    sites[0].again(dies)
    for member, site in enumerate(sites):
        assert asked(site, "begin", out[member].pack().hex(), model.hex()) == "begun"
        assert asked(site, "upload", 30, 0.5)
    exchange, agree = exchange.agree(range(4))
    for member, site in enumerate(sites):
        exchange = exchange.sign(member, bytes.fromhex(asked(site, "agree", agree.pack().hex())))
    assert sites[0].ask("unlock", exchange.unlock().pack().hex()) == "", "it died"
    sites[0].again()
    _, out = epoch.begin(2, range(4), Terms(30, b"", model))
    said = [asked(site, "begin", out[member].pack().hex(), model.hex()) for member, site in enumerate(sites)]
    assert said == ["" if gave else "begun", "begun", "begun", "begun"]
