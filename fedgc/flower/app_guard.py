"""Checks the code of an app against the policy of the site, before Flower installs and imports it.

Everything else that a policy says is enforced by fedgc's ClientApp, which the app imports: an app of another
kind could leave it out. So a site that trusts its policy lists the apps that it allows.

`guard` runs in the process `flwr-clientapp`, which `fedgc deploy client` and the federations of one machine
start by a program of fedgc (`fedgc.deploy.flower_programs`).
"""

import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from fedgc.errors import NotAllowed

POLICY: Final = "policy"  # key of the node config
_checked: Final[list[str]] = []  # the digest of this process's app


def guard() -> None:
    """Let Flower's ClientApp process install only apps that the policy in the node config allows."""
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
    """Raise NotAllowed unless the policy of this node allows the app in a bundle of Flower."""
    if not node.get(POLICY):
        return
    from fedgc.policy import AuditLog, Entry, check_app, read_policy
    from fedgc.policy.digests import app_digest, files_in_bundle
    from fedgc.policy.hours import zone_of

    policy = read_policy(Path(str(node[POLICY])))
    digest = app_digest(files_in_bundle(bundle))
    for refusal in check_app(policy, digest):
        log = AuditLog(policy.log_file, zone_of(policy.zone), time.time)
        name = str(node.get("name", ""))
        log.append(Entry("refused", name, run, rule=refusal.text))
        raise NotAllowed(f"client {name or 'without a name'}: {refusal.text}")
    _checked.append(digest)


def checked_app() -> str:
    """Return the digest of the app that was checked in this process; empty if none was."""
    return _checked[-1] if _checked else ""


def bundle_of(folder: Path) -> bytes:
    """Return the app in a folder as Flower sends it."""
    from flwr.cli.build import build_fab_from_disk

    bundle: bytes = build_fab_from_disk(folder)
    return bundle
