"""Test the Flower manifests of this repository and of the app of a local federation."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from fedgc.config import RunConfig, flat
from fedgc.deploy import local_federation as local
from fedgc.errors import BadSetting

ROOT = Path(__file__).parents[2]


def test_manifest_lists_every_setting_with_its_default() -> None:
    manifest = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert dict(flat(manifest["tool"]["flwr"]["app"]["config"])) == RunConfig().table()


def test_repository_builds_as_app_with_wiring_only(tmp_path: Path) -> None:
    program = Path(sys.executable).parent / "flwr"
    built = subprocess.run(
        [program, "build", "--app", ROOT], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (bundle,) = [*tmp_path.glob("*.fab"), *ROOT.glob("*.fab")]
    names = bundle_names(bundle)
    bundle.unlink()
    assert {name for name in names if name.endswith(".py")} == {"server/app.py", "client/app.py"}


def bundle_names(bundle: Path) -> list[str]:
    with zipfile.ZipFile(bundle) as opened:
        return opened.namelist()


@pytest.mark.parametrize(
    ("name", "wiring"), [("server", local.SERVER_WIRING), ("client", local.CLIENT_WIRING)]
)
def test_repository_wiring_matches_local_federation(name: str, wiring: str) -> None:
    assert (ROOT / name / "app.py").read_text() == wiring


def test_written_app_reads_back_with_same_settings(tmp_path: Path) -> None:
    config = RunConfig(rounds=7, task='a:b"c\\', deadline_s=2.5, blocks=2, task_settings={"rank": 8})
    written = local.write_app(tmp_path / "app", config.table())
    manifest = tomllib.loads((written / "pyproject.toml").read_text())
    assert RunConfig.read(manifest["tool"]["flwr"]["app"]["config"]) == config


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a\n"])
def test_node_name_is_valid_file_name(name: str) -> None:
    with pytest.raises(BadSetting, match="node name"):
        local.Node(name)


def test_two_nodes_with_same_name_are_refused() -> None:
    with pytest.raises(BadSetting, match="each once"):
        local.LocalFederation([local.Node("a"), local.Node("a")])
