"""`fedgc evaluate`: the clients of a run score one of its models; the run itself does not change."""

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import click
from rich.table import Table

from fedgc.cli import view
from fedgc.cli.follow import POLL_S, Log, Seen, why_incomplete
from fedgc.cli.history import must_be_over
from fedgc.cli.model import chosen_version
from fedgc.cli.run import APP_FOLDER, STOP_S, Wanted, app_with, host_of
from fedgc.cli.run_place import RunPlace, place_of
from fedgc.cli.signals import like_ctrl_c
from fedgc.config import RunConfig, known
from fedgc.deploy.app_folder import app_in
from fedgc.deploy.superlink import Superlink
from fedgc.errors import EdgeFailed
from fedgc.flower.scoring import RESULT
from fedgc.history import Score
from fedgc.processes.temporary_folder import temporary_folder
from fedgc.store.database import Store
from fedgc.store.views import Run
from fedgc.web.json_values import printed_json


@dataclass(frozen=True, slots=True)
class Asked:
    """Which model to score, and where: by default where the run was."""

    run: str
    version: int | None = None  # the newest
    best: bool = False
    place: RunPlace = field(default_factory=RunPlace)


def evaluate(asked: Asked, *, as_json: bool) -> None:
    """Have clients score a model; print the figures of each and the mean."""
    console = view.terminal()
    with like_ctrl_c(), Store.open(reads_only=True) as store:
        found = store.run(asked.run)
        must_be_over(found)
        place = asked.place or place_of(found.run)
        clients = place.clients or len(place.own) or None
        config = _config(found, chosen_version(store, found, asked.version, best=asked.best), clients)
        here = place.clients if place.own else config.min_clients
        started = None if place.superlink else here
        wanted = Wanted(started, {}, place.superlink, found.run, place.own, keys=place.keys)
        said = _scored(wanted, config)
    result = json.loads(said)
    if as_json:
        sys.stdout.write(printed_json({"run": found.run, **result}) + "\n")
        return
    console.print(_table(found, result))
    for name, problem in result["problems"].items():
        console.print(f"{name}: {problem}", soft_wrap=True, highlight=False)


def _config(run: Run, version: int, clients: int | None) -> RunConfig:
    """Return the settings of the run, with what makes clients score this version."""
    config = RunConfig.read({**known(run.settings), "resume": run.run, "validate.only": version})
    return replace(config, min_clients=clients) if clients is not None else config


def _scored(wanted: Wanted, config: RunConfig) -> str:
    """Return the result as it stands in the server's log."""
    console = view.terminal(stderr=True)
    with (
        host_of(wanted, console, config.resume) as host,
        temporary_folder(APP_FOLDER) as folder,
    ):
        superlink = host.superlink
        flower_run = superlink.submit(app_with(app_in(wanted.folder), folder / "app", config, wanted.folder))
        _follow(superlink, flower_run)
        log = Log(superlink.log(flower_run))
        said, lines = log.text(), log.lines()
    found = [line.partition(RESULT)[2] for line in lines if RESULT in line]
    if not found:
        raise EdgeFailed(f"the model was not scored: {why_incomplete(Seen(None), said)}")
    return found[-1]


def _follow(superlink: Superlink, flower_run: int) -> None:
    try:
        while superlink.running(flower_run):
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        superlink.stop(flower_run)
        superlink.wait(flower_run, STOP_S)
        raise click.Abort from None


def _table(run: Run, result: Mapping[str, Any]) -> Table:
    scores = [
        Score(result["round"], each["client"], each["samples"], each["metrics"]) for each in result["clients"]
    ]
    names = {each["client"]: each["name"] for each in result["clients"]}
    title = f"Version {result['version']} of {run.run}, round {result['round']}"
    return view.scores_table(title, scores, names, result["mean"])
