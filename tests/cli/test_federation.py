"""Test `fedgc keys`: identities, descriptors and their promises."""

import contextlib
import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedgc.cli import main


@dataclass(frozen=True)
class Said:
    returncode: int
    stdout: str
    stderr: str


class SessionTable:
    """A folder with vaults of several sites, each opened by its own passphrase."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fedgc(self, *words: str, opened_by: str | None = "open sesame") -> Said:
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            patch.setattr(sys, "argv", ["fedgc", *words])
            patch.setattr(sys, "stdin", io.StringIO())
            patch.delenv("FEDGC_PASSPHRASE", raising=False)
            if opened_by:
                patch.setenv("FEDGC_PASSPHRASE", opened_by)
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    code = main()
                except SystemExit as ended:
                    code = ended.code
        return Said(code or 0, out.getvalue(), err.getvalue())

    def key(self, name: str) -> str:
        return self.fedgc("keys", "new", "--vault", f"{name}.db").stdout.strip()

    def federation(self, *words: str, vault: str = "a") -> Said:
        return self.fedgc("keys", "federation", "all.fed", "--vault", f"{vault}.db", *words)


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> SessionTable:
    return SessionTable(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def members(sessions: SessionTable) -> list[str]:
    return [f"--member={name}={sessions.key(name)}" for name in "abc"]


@pytest.fixture
def written(sessions: SessionTable, members: list[str]) -> Path:
    path = sessions.folder / "all.fed"
    path.unlink(missing_ok=True)
    assert sessions.federation(*members, "--clip", "0.5").returncode == 0
    return path


def test_new_identity_is_printed_and_stays_same(sessions: SessionTable):
    first = sessions.key("again")
    assert len(bytes.fromhex(first)) == 32
    assert sessions.key("again") == first
    assert (sessions.folder / "again.db").stat().st_mode & 0o077 == 0


def test_key_file_readable_by_others_does_not_open_vault(sessions: SessionTable):
    path = sessions.folder / "vault.key"
    path.write_bytes(bytes(range(32)))
    path.chmod(0o644)
    words = ("keys", "new", "--vault", "filed.db", "--key-file", "vault.key")
    refused = sessions.fedgc(*words, opened_by=None)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == "fedgc: key file vault.key: others can read it; needed mode 600\n"
    path.chmod(0o600)
    assert len(sessions.fedgc(*words, opened_by=None).stdout) == 65


def test_missing_secret_without_terminal_is_reported(sessions: SessionTable):
    said = sessions.fedgc("keys", "new", "--vault", "none.db", opened_by=None)
    assert said.returncode == 2
    assert "needed one of them" in said.stderr
    assert not (sessions.folder / "none.db").exists()


def test_check_lists_promised_and_unpromised_properties(sessions: SessionTable, written: Path):
    said = sessions.fedgc("keys", "check", written.name).stdout
    assert "3 sites: a, b, c." in said
    assert "signed by a, not yet by b, c." in said
    promised, _, silent = said.partition("It does not promise more")
    assert "own program clips its values to +-0.5" in promised
    assert "by up to" in silent
    assert "does not hide the sum" in silent


def test_every_member_can_sign_without_changing_hash(sessions: SessionTable, written: Path):
    before = json.loads(sessions.fedgc("keys", "check", written.name, "--json").stdout)
    assert sessions.federation(vault="c").returncode == 0
    after = json.loads(sessions.fedgc("keys", "check", written.name, "--json").stdout)
    assert (before["signed"], after["signed"]) == (["a"], ["a", "c"])
    assert before["descriptor"] == after["descriptor"]


@pytest.mark.parametrize("words", [["--threshold", "3"], ["--n-min", "3"], ["--delta", "1e-6"]])
def test_options_of_new_descriptor_are_refused_at_signing(
    sessions: SessionTable, written: Path, words: list[str]
):
    before = written.read_bytes()
    said = sessions.federation(*words, vault="b")
    assert said.returncode == 2
    assert f"saw {words[0]} without --member; needed the members of a new descriptor" in said.stderr
    assert written.read_bytes() == before


def test_non_member_cannot_sign(sessions: SessionTable, written: Path):
    sessions.key("stranger")
    said = sessions.federation(vault="stranger")
    assert said.returncode == 1
    assert "needed a member's" in said.stderr
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize("place", [0.3, 0.6, 0.999])
def test_changed_descriptor_is_refused(sessions: SessionTable, written: Path, place: float):
    data = bytearray(written.read_bytes())
    data[int(place * len(data))] ^= 1
    written.write_bytes(bytes(data))
    said = sessions.fedgc("keys", "check", written.name)
    assert said.returncode == 2
    assert said.stderr.startswith(f"fedgc: descriptor {written.name}: ")
    assert said.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--threshold", "2"], "threshold: saw 2 of 3, needed 3 to 3"),
        (["--n-min", "4"], "n_min: saw 4 of 3, needed 3 to 3"),
        (["--exchanges", "65"], "exchanges: saw 65 an epoch, needed 1 to 64"),
        (["--bits", "8", "--ring", "8"], "ring: saw 3 members with 8 bits"),
        (["--ring", "24"], "ring: saw 24, needed one of [8, 16, 32]"),
        (["--clip", "nan"], "clip: saw nan"),
        (["--noise", "2"], "privacy: needed --noise with --site-clip"),
        (["--colluders", "-1"], "graph: saw -1 colluding and 0 lost of 3 members, needed 0 to 3"),
        (["--lost", "1"], "--lost: saw it alone, needed --colluders"),
        (["--colluders", "1", "--lost", "1"], "--lost: saw 1 of 3 members of whom 3 have to stay, needed at"),
        (["--colluders", "2"], "--colluders: saw 2 of 3 members of whom 3 have to stay, needed at most 1\n"),
        (["--member", "d"], "member 'd': needed name=public key"),
    ],
)
def test_invalid_federation_gives_one_line_and_writes_nothing(
    sessions: SessionTable, members: list[str], words: list[str], sentence: str
):
    (sessions.folder / "all.fed").unlink(missing_ok=True)
    said = sessions.federation(*members, *words)
    assert said.returncode == 2
    assert said.stderr.startswith(f"fedgc: {sentence}")
    assert said.stderr.count("\n") == 1
    assert not (sessions.folder / "all.fed").exists()


def named(sessions: SessionTable, count: int) -> list[str]:
    others = (f"--member={number:03}={number + 1:064x}" for number in range(count - 1))
    return [*others, f"--member=a={sessions.key('a')}"]


def test_colluders_are_never_fewer_than_asked_for(sessions: SessionTable):
    path, members = sessions.folder / "all.fed", named(sessions, 30)
    path.unlink(missing_ok=True)
    refused = sessions.federation(*members, "--colluders", "20")
    needed = "saw 20 of 30 members of whom 21 have to stay, needed at most 11, or --threshold 26"
    assert (refused.returncode, refused.stderr) == (2, f"fedgc: --colluders: {needed}\n")
    assert not path.exists()
    assert sessions.federation(*members, "--colluders", "20", "--threshold", "26").returncode == 0
    assert (
        "while at most 21 of them work with the server" in sessions.fedgc("keys", "check", path.name).stdout
    )


def test_large_federation_without_secure_graph_is_refused(sessions: SessionTable):
    said = sessions.federation(*named(sessions, 300), "--colluders", "150")
    assert said.returncode == 2
    assert "for which no graph is secure; needed fewer, or a larger --threshold" in said.stderr


def test_two_sites_are_refused(sessions: SessionTable, members: list[str]):
    (sessions.folder / "all.fed").unlink(missing_ok=True)
    said = sessions.federation(*members[:2])
    assert (said.returncode, said.stderr) == (2, "fedgc: federation: saw 2 members, needed 3 to 255\n")


def test_descriptor_is_not_overwritten(sessions: SessionTable, written: Path, members: list[str]):
    said = sessions.federation(*members)
    assert said.returncode == 2
    assert "needed a new name" in said.stderr
