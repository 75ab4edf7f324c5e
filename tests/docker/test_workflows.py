"""Test the workflows: they call targets that exist, and a release has hashes, an SBOM and provenance."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in yaml.safe_load(path.read_text())["jobs"].values() for step in job["steps"]]


def make(target: str, **variables: str) -> str:
    """Return what a target would execute."""
    words = [f"{name}={value}" for name, value in variables.items()]
    done = subprocess.run(["make", "-n", target, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_calls_targets_that_exist(path: Path):
    targets = [found[1] for step in steps(path) if (found := re.match(r"make (\S+)", step.get("run", "")))]
    assert targets
    for target in targets:
        make(target)
    for step in steps(path):
        assert "run" in step or re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"])


def test_release_has_hashes_sbom_and_provenance():
    path = ROOT / ".github" / "workflows" / "release.yml"
    workflow = yaml.safe_load(path.read_text())
    assert workflow[True] == {"push": {"tags": ["v*"]}}, "True: YAML's word `on`"
    build, job = workflow["jobs"].values()
    assert workflow["permissions"] == {}
    assert job["permissions"] == {"contents": "write", "id-token": "write", "attestations": "write"}
    assert job["needs"] == "build"
    used = {step["uses"].partition("@")[0]: step.get("with") for step in job["steps"] if "uses" in step}
    assert sorted(used) == [
        "actions/attest-build-provenance", "actions/attest-sbom", "actions/download-artifact"
    ]  # fmt: skip
    (published,) = (step["run"] for step in job["steps"] if "run" in step)
    assert published.startswith("gh release create ")
    assert build["permissions"] == {"contents": "read"}
    assert build["steps"][0]["with"] == {"persist-credentials": False}
    assert build["steps"][-1]["with"]["name"] == used["actions/download-artifact"]["name"]
    assert used["actions/attest-build-provenance"] == {"subject-path": "dist/*"}
    sbom = used["actions/attest-sbom"]["sbom-path"]
    built = make("dist")
    assert f"--output-file {sbom}" in make("sbom")
    assert "-m build" in built
    assert "sha256sum" in built


def test_build_of_release_is_constrained():
    """Also in the environments that pip and `build` make: each variable is for one of them."""
    words = ["make", "--dry-run", "--print-data-base", "--old-file=.venv/.ready", "dist"]
    said = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    for name in ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"):
        assert f"dist: {name} := {ROOT / 'constraints.txt'}" in said
    pinned = {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert {"pip", "setuptools", "build", "pyproject_hooks", "packaging"} <= pinned


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
def test_audit_without_database_is_skipped_by_name():
    nowhere = "http://127.0.0.1:9"
    words = ["make", "--no-print-directory", "audit", f"VULNERABILITIES={nowhere}"]
    done = subprocess.run([*words, "--old-file=.venv/.ready"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (
        0, f"audit: skipped: its database, {nowhere}, cannot be reached\n"
    )  # fmt: skip
