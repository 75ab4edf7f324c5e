"""Checks the code of an app against the policy and the descriptor of the site, before Flower installs it.

Everything else that a policy says is enforced by fedgc's ClientApp, which the app imports: an app of another
kind could leave it out. So a site that trusts its policy lists the apps that it allows.

Flower loads what lies in the folder that the app's id, version and eight digits of its hash name, as the
server says them. So a checked app is installed into a fresh folder, and must be what Flower will load.

`guard` runs in the process `flwr-clientapp`, which `fedgc deploy client` and the federations of one machine
start by a program of fedgc (`fedgc.deploy.flower_programs`).
"""

import atexit
import os
import shutil
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fedgc.errors import NotAllowed, Unusable
from fedgc.processes.temporary_folder import fresh_folder

if TYPE_CHECKING:
    from fedgc.policy import Policy, SentApp
    from fedgc.secagg import Federation

POLICY, DESCRIPTOR = "policy", "federation"  # keys of the node config
HOME: Final = "FLWR_HOME"
FRESH: Final = "fedgc-app-"  # begins the names of folders of checked apps
_checked: Final[list["SentApp"]] = []  # this process's app


def guard() -> None:
    """Let Flower's ClientApp process install only apps that the node config's policy and descriptor allow."""
    running: Any = import_module("flwr.supernode.runtime.run_clientapp")
    pull, install, loader = running.pull_task_input, running.install_from_fab, running.get_load_client_app_fn
    home = os.environ.get(HOME)
    taken: list[Any] = []

    def pulled(client: object) -> Any:  # noqa: ANN401  Flower's
        taken[:] = pull(client)
        return tuple(taken)

    def checked(bundle: bytes, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401  Flower's
        _, context, run, fab = taken
        sent = must_be_allowed(bundle, context.node_config, f"Flower's run {run.run_id}")
        if sent is None:
            return install(bundle, *arguments, **options)
        os.environ[HOME] = _fresh_folder()
        folder = install(bundle, *arguments, **options)
        named = (run.fab_id, run.fab_version, fab.hash_str)
        _must_be_installed(sent, folder, lambda: running.get_project_dir(*named), context.node_config)
        return folder

    def load_function(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401  Flower's
        load = loader(*arguments, **options)

        def loaded(*named: str) -> Any:  # noqa: ANN401  Flower's
            app = load(*named)
            os.environ.pop(HOME, None)  # what the app starts, such as a gateway, finds its connections
            os.environ.update({} if home is None else {HOME: home})
            return app

        return loaded

    running.pull_task_input, running.install_from_fab = pulled, checked
    running.get_load_client_app_fn = load_function


def _fresh_folder() -> str:
    """Return a new folder that is removed at the end of this process, or by a later one if it is killed."""
    folder, _ = fresh_folder(FRESH)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return str(folder)


def _must_be_installed(
    sent: "SentApp", folder: Path, loaded: Callable[[], Path], node: Mapping[str, object]
) -> None:
    """Raise NotAllowed unless a folder has the app that was checked, and is the one that Flower loads."""
    from fedgc.policy.digests import app_digest

    files = {each.relative_to(folder).as_posix(): each for each in folder.rglob("*") if each.is_file()}
    try:
        is_it = loaded().resolve() == folder.resolve()
    except ValueError:  # the server's id is none
        is_it = False
    if not is_it or app_digest({name: each.read_bytes() for name, each in files.items()}) != sent.digest:
        said = "app: saw an id, version or hash of another one, needed those of the app that was checked"
        raise NotAllowed(f"{_client(node)}: {said}")


def must_be_allowed(bundle: bytes, node: Mapping[str, object], run: str) -> "SentApp | None":
    """Raise NotAllowed unless this node's policy and descriptor allow the app in a bundle of Flower.

    Returns the app; None if there is neither a policy nor a descriptor that pins one.
    """
    federation = _pinning(node)
    if not node.get(POLICY) and federation is None:
        return None
    from fedgc.flower.pinned_task import must_be_app
    from fedgc.policy import AuditLog, Entry, SentApp, read_policy
    from fedgc.policy.digests import files_in_bundle
    from fedgc.policy.hours import zone_of

    policy = read_policy(Path(str(node[POLICY]))) if node.get(POLICY) else None
    try:
        sent = SentApp.of(files_in_bundle(bundle))
        if policy is not None:
            _must_be_in_policy(policy, sent)
        if federation is not None:
            must_be_app(federation, sent)
    except (NotAllowed, Unusable) as refused:
        if policy is not None:
            log = AuditLog(policy.log_file, zone_of(policy.zone), time.time)
            log.append(Entry("refused", str(node.get("name", "")), run, rule=str(refused)))
        raise NotAllowed(f"{_client(node)}: {refused}") from None
    _checked.append(sent)
    return sent


def _client(node: Mapping[str, object]) -> str:
    return f"client {node.get('name') or 'without a name'}"


def _must_be_in_policy(policy: "Policy", sent: "SentApp") -> None:
    from fedgc.policy import check_app

    for refusal in check_app(policy, sent.digest, sent.signers):
        raise NotAllowed(refusal.text)


def _pinning(node: Mapping[str, object]) -> "Federation | None":
    """Return the federation of this node, if its descriptor pins a task."""
    if not node.get(DESCRIPTOR):
        return None
    from fedgc.store.descriptor import read_descriptor

    federation = read_descriptor(Path(str(node[DESCRIPTOR]))).federation
    return federation if federation.task else None


def checked_app() -> "SentApp | None":
    """Return the app that was checked in this process; None if none was."""
    return _checked[-1] if _checked else None
