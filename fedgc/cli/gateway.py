"""`fedgc gateway`: the run of a site's fleet, for the gateway that starts this command.

A gateway is a client of a consortium whose node config names the SuperLink of its site (`site-fleet`). Its
training is a run of the site's own fleet. The consortium decides what is trained: those settings are
inherited. The site decides how its fleet trains it: other settings have their defaults, or the values in the
node config (`site-settings`).

The run is named after the consortium's run (by Flower's number if that has no name) and the gateway
(`run_name`). If a gateway is started again, the site's server goes on from the last checkpoint of the run
(`fedgc.flower.run_memory`): the gateway needs neither its store nor its checkpoints.
"""

import hashlib
import math
import os
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import click

from fedgc.cli import view
from fedgc.cli.run import Place, Wanted, host_of, must_be_known, started
from fedgc.cli.settings import parse
from fedgc.cli.signals import like_ctrl_c
from fedgc.config import NAME, RunConfig
from fedgc.config.names import group_of
from fedgc.deploy.app_folder import App, Setting
from fedgc.deploy.superlink import Superlink
from fedgc.errors import BadSetting, EdgeFailed, Unusable, text_of
from fedgc.files import make_folder, opener
from fedgc.store.database import Store
from fedgc.training.loop.environment import VARIABLE, ScriptEnvironment

SITE, SETTINGS, HOME = "site-fleet", "site-settings", "site-home"  # keys of the node config
FILE: Final = "gateway.json"
INHERITED: Final = ("", "optimizer", "data", "client", "task")  # groups of settings
OWN: Final = ("run", "resume", "min-clients", "secrecy", "federation", "optimizer.server")  # and what follows
GIVEN: Final[Mapping[str, Setting]] = {
    "gate.name": "every",
    "history.evaluate-every": 0,
    "timing.start-timeout-s": 60.0,  # so that the consortium hears why the fleet is not there
}
LONGEST_NAME: Final = 64  # characters of a run's name
NEWEST: Final = 100  # runs of a SuperLink among which that of the consortium is looked for
_NOT_IN_NAME: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_DIGITS: Final = 8  # of a digest


def serve_site(app: Path | None, consortium: int) -> None:
    """Run the fleet of this site until the consortium's run is over.

    Args:
        app: The folder of the consortium's app, which the fleet trains.
        consortium: Flower's number of the consortium's run.

    Raises:
        Unusable: No gateway has started this process, or its settings are not accepted.
        EdgeFailed: The run of the fleet did not complete.
    """
    environment = ScriptEnvironment.read(os.environ)
    if environment is None or not environment.client.get(SITE):
        raise Unusable(
            f"fedgc gateway: saw no gateway; a SuperNode whose node config has {SITE}=SUPERLINK starts it"
        )
    if home := environment.client.get(HOME):
        os.environ["FLWR_HOME"] = str(home)
    settings = site_settings(environment, write_place(environment), consortium)
    wanted = Wanted(None, settings, superlink=str(environment.client[SITE]))
    must_be_known(wanted)
    console = view.terminal()
    with like_ctrl_c(), Store.open() as store:
        config = RunConfig.read(settings)
        with host_of(wanted, console, config.run) as host:
            _must_be_another(host.superlink, consortium)
            over = started(Place(wanted, App(app, {}) if app else None, store, host, console), config)
    if over.stopped:
        raise click.Abort
    if over.reason is not None:
        raise EdgeFailed(f"the run of the site did not complete: {over.reason}")


def site_settings(environment: ScriptEnvironment, place: Path, consortium: int) -> dict[str, Setting]:
    """Return the settings of the site's run.

    Args:
        environment: What the gateway tells: the consortium's settings, and its own.
        place: The file by which the site's server finds the gateway.
        consortium: Flower's number of the consortium's run.
    """
    given, own = environment.settings, environment.client
    inherited = {
        key: each for key, each in given.items() if group_of(key) in INHERITED and not key.startswith(OWN)
    }
    of_run = given.get("resume") or given.get("run") or f"run-{consortium}"
    name = run_name(f"{of_run}-{own.get('name') or 'site'}")
    try:
        words = shlex.split(str(own.get(SETTINGS, "")))
    except ValueError as error:
        raise BadSetting(f"node config {SETTINGS}: saw {own[SETTINGS]!r}: {error}") from error
    mine = parse(words)
    refused = sorted(mine.keys() & {"run", "resume", "site.gateway"})
    if refused:
        raise BadSetting(f"node config {SETTINGS}: saw {refused[0]}, which the gateway sets")
    settings: dict[str, Setting] = {**inherited, **GIVEN, **mine, "run": name, "site.gateway": str(place)}
    steps, config = environment.config().round_steps, RunConfig.read(settings)
    return {**settings, "rounds": config.rounds * math.ceil(steps / config.round_steps)}


def run_name(text: str) -> str:
    """Return a text as the name of a run: if it has other characters or is too long, with its digest.

    >>> run_name("ward-north"), run_name("ward-Klinik Süd")
    ('ward-north', 'ward-Klinik-S-d-1a48ee79')
    """
    if NAME.fullmatch(text):
        return text
    digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:_DIGITS]
    return f"{_NOT_IN_NAME.sub('-', text)[: LONGEST_NAME - _DIGITS - 1]}-{digest}"


def write_place(environment: ScriptEnvironment) -> Path:
    """Write what the server of the site needs to find the gateway, for this user only."""
    place = environment.folder.absolute() / FILE
    try:
        make_folder(place.parent)
        with open(place, "w", opener=opener) as file:
            file.write(environment.write()[VARIABLE])
    except OSError as error:
        raise EdgeFailed(f"{place}: cannot be written ({text_of(error, place)})") from error
    return place


def _must_be_another(superlink: Superlink, consortium: int) -> None:
    """Refuse a site inside itself: a fleet that waits for its own gateway never gathers."""
    runs = []
    with suppress(EdgeFailed):  # the run that is submitted next says why
        runs = superlink.ask("list", "--limit", str(NEWEST))["runs"]  # a number not there would be an ERROR
    if any(each["run-id"] == str(consortium) for each in runs):
        raise Unusable(
            f"node config {SITE}: saw {superlink.name}, the SuperLink of the consortium itself, "
            "needed that of the site's fleet"
        )
