"""Test that a site of a federation that pins its task trains nothing else."""

import json
import os
from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from fedgc.config import RunConfig
from fedgc.errors import NotAllowed
from fedgc.flower import app_guard
from fedgc.flower.client import _client
from fedgc.policy import Statement, pinned_settings
from fedgc.policy.digests import STATEMENT, app_digest
from fedgc.secagg import Descriptor, Federation, Identity, Quantizer, TaskPin
from fedgc.secagg.federation import member_list
from fedgc.store.descriptor import write_descriptor
from fedgc.store.vault import Vault
from tests.flower.test_site_policy import RUN, bundle_of, context_of, logged

FILES = {"client/app.py": b"app = 1", "pyproject.toml": b"[project]\nversion = '1'"}
SETTINGS = {"secrecy": "masked", "federation": "server.fed", "rounds": 3}
SECRET = b"a long secret"


class Site:
    """The files of one site of three, whose federation pins the task of a signed app."""

    def __init__(self, folder: Path, pin: bool = True) -> None:
        self.folder, self.key = folder, folder / "vault.key"
        self.key.write_bytes(SECRET)
        self.key.chmod(0o600)
        with Vault.open(folder / "north.db", SECRET) as vault:
            self.identities = [vault.identity(), *(Identity(bytes([number]) * 32) for number in (1, 2))]
        agreed = Statement(version("fedgc"), app_digest(FILES), "", pinned_settings(RunConfig.read(SETTINGS)))
        self.signed = agreed.sign(self.identities[0]).sign(self.identities[1])
        named = zip(("north", "south", "west"), (each.public for each in self.identities), strict=True)
        digest = bytes.fromhex(agreed.digest.removeprefix("sha256:"))
        federation = Federation(
            member_list(list(named)),
            3,
            3,
            4,
            Quantizer(1.0, 20, 32, 100),
            task=TaskPin(digest, 2) if pin else None,
        )
        write_descriptor(folder / "all.fed", Descriptor(federation).endorse(self.identities[0]))
        self.node = {
            "federation": str(folder / "all.fed"), "vault": str(folder / "north.db"),
            "vault-key": str(self.key), "identity": str(folder / "identity"), "name": "north",
        }  # fmt: skip

    def send(self, statement: Statement | None = None, files: dict[str, bytes] = FILES) -> None:
        """Have the guard check an app of these files."""
        if statement is not None:
            statement.write(self.folder / STATEMENT)
            files = {**files, STATEMENT: (self.folder / STATEMENT).read_bytes()}
        app_guard.must_be_allowed(bundle_of(files), self.node, RUN)

    def join(self, **settings: Any) -> None:
        with _client(context_of(self.node, **{**SETTINGS, **settings}), None, RUN):
            pass


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(app_guard, "_checked", [])
    return Site(tmp_path)


def test_site_trains_task_that_members_signed(site: Site):
    site.send(site.signed)
    site.join()
    site.join(seed=5, run="again", **{"links.bind": "127.0.0.1:0"})


@pytest.mark.parametrize("name", FILES)
def test_changed_app_is_refused_before_its_code_runs(site: Site, name: str):
    changed = {**FILES, name: FILES[name].replace(b"1", b"2")}
    with pytest.raises(NotAllowed, match=r"client north: descriptor \w+ pins its task: app: saw sha256:"):
        site.send(site.signed, changed)
    with pytest.raises(NotAllowed, match=r"not checked before it began, needed one that `fedgc deploy"):
        site.join()


def test_other_statement_or_few_signatures_are_refused(site: Site):
    other = replace(site.signed, app=app_digest({"a": b""}), signatures={}).sign(site.identities[0])
    few = replace(site.signed, signatures={}).sign(site.identities[2]).sign(Identity(bytes(32)))
    for sent, named in (
        (None, "an app without a statement, needed the statement that `fedgc task sign` writes"),
        (other, "saw the statement sha256:"),
        (few, "saw it signed by west, needed 2 members"),
    ):
        with pytest.raises(NotAllowed, match=named):
            site.send(sent)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"rounds": 4}, "setting rounds: saw 4, needed 3"),
        ({"learning-rate": 0.2}, "setting learning-rate: saw 0.2, needed 0.1"),
        ({"task": "breast-cancer"}, "setting task: saw 'breast-cancer', needed 'digits'"),
        ({"task": "no.such:task"}, "setting task: saw 'no.such:task', needed 'digits'"),
        ({"script": f"sh -c {os.devnull}"}, "setting script: "),
        ({"task.more": 1}, "setting task.more: saw 1, needed none"),
    ],
)
def test_changed_settings_are_refused_before_task_is_imported(
    site: Site, settings: dict[str, Any], named: str
):
    site.send(site.signed)
    with pytest.raises(NotAllowed) as refused:
        site.join(**settings)
    assert named in str(refused.value)
    assert refused.value.client


def test_other_version_of_fedgc_is_refused(site: Site, monkeypatch: pytest.MonkeyPatch):
    site.send(site.signed)
    monkeypatch.setattr("fedgc.flower.pinned_task.version", lambda _: "9.9")
    with pytest.raises(NotAllowed, match=r"version of fedgc: saw 9\.9, needed"):
        site.join()


def test_refusals_by_descriptor_are_in_audit_log(site: Site, tmp_path: Path):
    (tmp_path / "site.toml").write_text('[secrecy]\nleast = "masked"\n')
    site.node["policy"] = str(tmp_path / "site.toml")
    for files in ({**FILES, "more.py": b""}, FILES):
        with pytest.raises(NotAllowed) if "more.py" in files else nullcontext():
            site.send(site.signed, files)
    with pytest.raises(NotAllowed, match="client north: app: saw 3 bytes that are no bundle"):
        app_guard.must_be_allowed(b"abc", site.node, RUN)
    with pytest.raises(NotAllowed):
        site.join(rounds=4)
    said = [(each["what"], str(each["rule"])) for each in logged(tmp_path / "site.toml")]
    assert [what for what, _ in said] == ["refused"] * 3
    for (_, rule), words in zip(said, ("app: saw sha256", "no bundle", "rounds: saw 4"), strict=True):
        assert words in rule


def test_descriptor_without_task_checks_no_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(app_guard, "_checked", [])
    site = Site(tmp_path, pin=False)
    site.send(None, {"client/app.pyc": b""})
    assert app_guard.checked_app() is None
    site.join(rounds=9)


def test_policy_counts_signatures_that_travel_with_app(site: Site, tmp_path: Path):
    keys = json.dumps([each.public.hex() for each in site.identities])
    (tmp_path / "site.toml").write_text(f"[allow]\nsigners = {keys}\nsignatures = 2\n")
    site.node = {"policy": str(tmp_path / "site.toml"), "name": "north"}
    site.send(site.signed)
    sent = app_guard.checked_app()
    assert sent
    assert (sent.digest, sent.statement, sent.has_module("client.app:app")) == (
        app_digest(FILES), site.signed, True
    )  # fmt: skip
    with pytest.raises(
        NotAllowed, match=r"\(allow.signers\): saw the app sha256:\w+, signed by 0 of these keys"
    ):
        site.send(site.signed, {**FILES, "client/more.py": b""})


def test_broken_statement_is_named_where_it_is_needed(site: Site, tmp_path: Path):
    """It counts as no signature: an app that is listed needs none."""
    broken = {**FILES, STATEMENT: b"{}"}
    with pytest.raises(NotAllowed, match=r"client north: descriptor \w+ pins its task: task.fedgc.json: saw"):
        site.send(None, broken)
    policy = tmp_path / "site.toml"
    site.node = {"policy": str(policy), "name": "north"}
    policy.write_text(f'[allow]\napps = ["{app_digest(FILES)}"]\n')
    site.send(None, broken)
    policy.write_text(f'[allow]\nsigners = ["{site.identities[0].public.hex()}"]\n')
    with pytest.raises(NotAllowed, match=r"client north: site.toml.*signed by 0 of these keys"):
        site.send(None, broken)
    assert (tmp_path / "site.audit.jsonl").is_file()
