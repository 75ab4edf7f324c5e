"""Test the public API: names, lazy imports, version."""

import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fedgc

ROOT = Path(__file__).parents[1]
NAMES = {
    "Task",
    "over",
    "site_data",
    "from_lightning",
    "join",
    "client_settings",
    "RunConfig",
    "FedGC",
    "server_app",
    "client_app",
    "__version__",
}
TRAINERS = {"hf", "lightning"}  # submodules, imported at their first use
HEAVY = {"torch", "flwr", "grpc", "sqlalchemy", "typer", "cryptography", "numpy", "transformers", "lightning"}


def run(code: str) -> str:
    """Return what the code prints in a fresh process."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_public_names_are_importable_and_listed():
    assert set(fedgc.__all__) == NAMES <= set(dir(fedgc))
    assert all(getattr(fedgc, name) is not None for name in NAMES)


def test_import_loads_no_heavy_package():
    assert run(f"import sys, fedgc; print(sorted({HEAVY} & set(sys.modules)))") == "[]"


@pytest.mark.parametrize("name", sorted(TRAINERS))
def test_trainer_callback_is_found_without_its_import(name: str):
    assert (
        run(f"import fedgc; print({name!r} in dir(fedgc), fedgc.{name}.Callback.__name__)") == "True Callback"
    )


@pytest.mark.parametrize("name", ["Task", "over", "from_lightning", "RunConfig"])
def test_task_names_load_neither_torch_nor_flower(name):
    code = f"import sys; from fedgc import {name}; print(sorted({{'torch', 'flwr'}} & set(sys.modules)))"
    assert run(code) == "[]"


def test_submodule_does_not_shadow_public_name():
    assert not NAMES & {each.name for each in pkgutil.iter_modules(fedgc.__path__)}


def test_name_is_stable_after_all_imports():
    code = (
        "import fedgc, fedgc.flower.server, fedgc.flower.client, fedgc.training.tasks; "
        "print(*(callable(getattr(fedgc, name)) for name in fedgc.__all__ if name != '__version__'))"
    )
    assert set(run(code).split()) == {"True"}


def test_unknown_name_raises_attribute_error():
    with pytest.raises(AttributeError, match="module 'fedgc' has no attribute 'task'"):
        fedgc.task  # noqa: B018


def test_version_equals_project_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert fedgc.__version__ == project["version"]


def test_package_is_marked_as_typed():
    assert (Path(fedgc.__file__).parent / "py.typed").exists()
