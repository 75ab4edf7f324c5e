"""Checks the code of an app against the policy and the descriptor of the site, before Flower installs it.

Everything else that a policy says is enforced by fedgc's ClientApp, which the app imports: an app of another
kind could leave it out. So a site that trusts its policy lists the apps that it allows.

`guard` runs in the process `flwr-clientapp`, which `fedgc deploy client` and the federations of one machine
start by a program of fedgc (`fedgc.deploy.flower_programs`).
"""

import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fedgc.errors import NotAllowed

if TYPE_CHECKING:
    from fedgc.policy import SentApp
    from fedgc.secagg import Federation

POLICY, DESCRIPTOR = "policy", "federation"  # keys of the node config
_checked: Final[list["SentApp"]] = []  # this process's app


def guard() -> None:
    """Let Flower's ClientApp process install only apps that the node config's policy and descriptor allow."""
    running: Any = import_module("flwr.supernode.runtime.run_clientapp")
    pull, install = running.pull_task_input, running.install_from_fab
    taken: list[Any] = []

    def pulled(client: object) -> Any:  # noqa: ANN401  Flower's
        taken[:] = pull(client)
        return tuple(taken)

    def checked(bundle: bytes, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401  Flower's
        _, context, run, _ = taken
        must_be_allowed(bundle, context.node_config, f"Flower's run {run.run_id}")
        return install(bundle, *arguments, **options)

    running.pull_task_input, running.install_from_fab = pulled, checked


def must_be_allowed(bundle: bytes, node: Mapping[str, object], run: str) -> None:
    """Raise NotAllowed unless this node's policy and descriptor allow the app in a bundle of Flower."""
    federation = _pinning(node)
    if not node.get(POLICY) and federation is None:
        return
    from fedgc.flower.pinned_task import must_be_app
    from fedgc.policy import SentApp
    from fedgc.policy.digests import files_in_bundle

    sent = SentApp.of(files_in_bundle(bundle))
    name = str(node.get("name", ""))
    try:
        if node.get(POLICY):
            _must_be_in_policy(Path(str(node[POLICY])), sent, name, run)
        if federation is not None:
            must_be_app(federation, sent)
    except NotAllowed as refused:
        raise NotAllowed(f"client {name or 'without a name'}: {refused}") from None
    _checked.append(sent)


def _must_be_in_policy(file: Path, sent: "SentApp", name: str, run: str) -> None:
    from fedgc.policy import AuditLog, Entry, check_app, read_policy
    from fedgc.policy.hours import zone_of

    policy = read_policy(file)
    for refusal in check_app(policy, sent.digest, sent.signers):
        log = AuditLog(policy.log_file, zone_of(policy.zone), time.time)
        log.append(Entry("refused", name, run, rule=refusal.text))
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


def bundle_of(folder: Path) -> bytes:
    """Return the app in a folder as Flower sends it."""
    from flwr.cli.build import build_fab_from_disk

    bundle: bytes = build_fab_from_disk(folder)
    return bundle
