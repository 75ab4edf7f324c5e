"""Test the single list of Flower names used beyond its public API.

Public is what `__all__` of the modules in PUBLIC names. A new release of Flower may change anything else, so
each such name must be listed here; `make canary` shows whether the newest release still has them."""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("fedgc", "server", "client", "docker", "benchmarks", "examples", "tests")
SOURCES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
PUBLIC = ("flwr.app", "flwr.clientapp", "flwr.clientapp.mod", "flwr.serverapp", "flwr.serverapp.strategy")
AGGREGATION = "flwr.common.secure_aggregation"
PRIVATE_NAMES = {
    "flwr.cli.build.build_fab_from_disk",  # the digest of an app is that of what Flower sends
    # an app has the files of `flwr build`
    "flwr.cli.build.get_filtered_fab_paths",
    "flwr.cli.utils.filter_paths_for_publish",
    # an app is checked before it is installed
    "flwr.supernode.runtime.run_clientapp.get_load_client_app_fn",
    "flwr.supernode.runtime.run_clientapp.get_project_dir",
    "flwr.supernode.runtime.run_clientapp.install_from_fab",
    "flwr.supernode.runtime.run_clientapp.pull_task_input",
    "flwr.supernode.runtime.run_clientapp.run_clientapp",
    "flwr.cli.app.app",  # every command of `flwr` that our pages show exists
    "flwr.supercore.task_identity.TaskIdentity",  # a test makes a Grid without a SuperLink
    "flwr.simulation.run_simulation",  # the simulator that ours is timed beside
    # SecAgg+, which Flower offers with its older API only: the protocol that ours is compared with
    "flwr.client.mod.secure_aggregation.secaggplus_mod.SecAggPlusState",
    "flwr.client.mod.secure_aggregation.secaggplus_mod._collect_masked_vectors",
    "flwr.client.mod.secure_aggregation.secaggplus_mod._setup",
    "flwr.client.mod.secure_aggregation.secaggplus_mod._share_keys",
    "flwr.client.mod.secure_aggregation.secaggplus_mod._unmask",
    "flwr.common.bytes_to_ndarray",
    "flwr.common.ndarrays_to_parameters",
    f"{AGGREGATION}.crypto.shamir.combine_shares",
    f"{AGGREGATION}.crypto.symmetric_encryption.generate_shared_key",
    f"{AGGREGATION}.ndarrays_arithmetic.factor_extract",
    f"{AGGREGATION}.ndarrays_arithmetic.get_parameters_shape",
    f"{AGGREGATION}.ndarrays_arithmetic.parameters_addition",
    f"{AGGREGATION}.ndarrays_arithmetic.parameters_mod",
    f"{AGGREGATION}.ndarrays_arithmetic.parameters_subtraction",
    f"{AGGREGATION}.quantization.dequantize",
    f"{AGGREGATION}.secaggplus_constants.Key",
    f"{AGGREGATION}.secaggplus_utils.pseudo_rand_gen",
    "flwr.supercore.primitives.asymmetric.bytes_to_private_key",
    "flwr.supercore.primitives.asymmetric.bytes_to_public_key",
}
# Programs, options and variables that the library names in strings.
DOCUMENTED_WORDS = {
    "flower-superlink",
    "flower-supernode",
    "flower-superexec",
    "--disable-runtime-dependency-installation",
    "FLWR_HOME",
    "FLWR_TELEMETRY_ENABLED",
    "FLWR_DISABLE_UPDATE_CHECK",
}
PRIVATE_WORDS = {
    "--allow-runtime-dependency-installation",  # tells whether a SuperLink would install what an app needs
    "--runtime-api-address",  # tells which SuperLink an executor belongs to
    "flwr-clientapp",  # the process of a client, which is asked to leave
    "flwr-serverapp",  # the process of a server, which is asked to end
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL",  # an executor looks for work less often than it does by default
}
WORD = re.compile(r"(?:flwr|flower)-[a-z]+app\b|flower-super[a-z]+|FLWR_[A-Z_]+|--[a-z]*-?runtime-[a-z-]+")


def imported(path: Path) -> Iterator[str]:
    """Return every name of Flower that this file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").startswith("flwr"):
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.split(".")[0] == "flwr")


def strings(path: Path) -> Iterator[str]:
    """Return every string of this file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def is_public(name: str) -> bool:
    module, _, attribute = name.rpartition(".")
    return module in PUBLIC and attribute in import_module(module).__all__


def test_names_beyond_public_api_are_listed():
    used = {name for path in SOURCES for name in imported(path) if not is_public(name)}
    assert used == PRIVATE_NAMES


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # importing a private name may warn
@pytest.mark.parametrize("name", sorted(PRIVATE_NAMES))
def test_listed_name_exists_in_installed_flower(name):
    module, _, attribute = name.rpartition(".")
    assert hasattr(import_module(module), attribute)


def test_undocumented_words_are_listed():
    library = [path for path in SOURCES if ROOT / "fedgc" in path.parents]
    used = {word for path in library for text in strings(path) for word in WORD.findall(text)}
    assert used == PRIVATE_WORDS | DOCUMENTED_WORDS
