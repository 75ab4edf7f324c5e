"""The commands, their words and their help; the modules that they call do the work."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from fedgc.cli.deploy import deploy
from fedgc.cli.keys import keys

app = typer.Typer(
    name="fedgc",
    help="Federated and edge training on Flower in which no finished work is thrown away.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 done; 1 another program, the network or the disk failed, or a check did; "
    "2 what was asked for cannot be; 130 Ctrl-C. Any command takes --debug: an error then shows where it "
    "came from.",
)


def _settings_like(incomplete: str) -> Iterator[str]:
    """Complete the name of a setting."""
    from fedgc.config import KEYS  # here, as help must not wait for numpy

    return (f"{name}=" for name in KEYS.values() if name.startswith(incomplete))


def _runs_like(incomplete: str) -> Iterator[str]:
    """Complete the name of a run in the store; without a store there is none."""
    from fedgc.errors import FedgcError
    from fedgc.store.database import Store

    try:
        with Store.open(reads_only=True) as store:
            names = [each.run for each in store.runs(100)]
    except FedgcError:
        names = []
    return (name for name in names if name.startswith(incomplete))


Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        help="A setting of the run, as name=value; may be repeated.",
        autocompletion=_settings_like,
    ),
]


RunName = Annotated[
    str | None,
    typer.Option(
        "--run",
        help="The run to ask about; the newest where none is named.",
        autocompletion=_runs_like,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Watch = Annotated[bool, typer.Option("--watch", help="Show it again every second, until Ctrl-C.")]

Version = Annotated[int | None, typer.Option(help="Which version; the newest where none is named.")]

model = typer.Typer(help="The models that runs made: list, export, restore.", no_args_is_help=True)
store = typer.Typer(help="Look after the store.", no_args_is_help=True)
app.add_typer(model, name="model")
app.add_typer(store, name="store")
app.add_typer(keys, name="keys")
app.add_typer(deploy, name="deploy")


@app.callback()
def _root() -> None:
    """Show the commands where none is given."""


@app.command()
def demo(  # noqa: PLR0913, PLR0917  each is one word of the command line
    rounds: Annotated[
        int | None, typer.Option(help="Rounds of each run; by default 12, or 24 of a single run.", min=1)
    ] = None,
    work: Annotated[
        str | None, typer.Option(help="local or coded; by default one run of each, and local under masks.")
    ] = None,
    gate: Annotated[
        str | None, typer.Option(help="Which gate (`fedgc config --all` lists them); sets gate.name.")
    ] = None,
    sites: Annotated[int, typer.Option(help="Clients; under masks, each is a site.")] = 4,
    secrecy: Annotated[str, typer.Option(help="open, or masked: only sums are seen.")] = "open",
    folder: Annotated[
        Path, typer.Option(help="Where the demo keeps its store, checkpoints, caches and keys.")
    ] = Path("fedgc-demo"),
    settings: Settings = None,
) -> None:
    """Train digits on clients of this machine: one is four times slower, one is killed and comes back.

    By default there is one run for each kind of work.

    Example: fedgc demo --work local
    """
    from fedgc.cli.demo import Cast, run_demo  # here, as help must not wait for what a federation needs
    from fedgc.cli.settings import parse

    chosen = [f"{name}={value}" for name, value in (("work", work), ("gate.name", gate)) if value is not None]
    run_demo(rounds, parse([*chosen, *(settings or [])]), Cast(sites, secrecy), folder)


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(help="A folder that does not exist yet; its name is the app's.")],
) -> None:
    """Write a Flower app around a task of your own, with a test; it runs as it is.

    Example: fedgc new ward && cd ward && make test
    """
    from fedgc.cli.new_app import write_new

    write_new(folder)


@app.command()
def run(
    task: Annotated[str | None, typer.Option(help="A shipped task, or module:attribute of your own.")] = None,
    clients: Annotated[
        int | None, typer.Option(help="Clients to start on this machine; 4 where nothing is said.")
    ] = None,
    superlink: Annotated[
        str | None,
        typer.Option(help="Train there instead: a name in Flower's configuration, or up for `fedgc up`."),
    ] = None,
    settings: Settings = None,
    resume: Annotated[
        str | None,
        typer.Option(help="Go on with this run, from its last checkpoint.", autocompletion=_runs_like),
    ] = None,
    attach: Annotated[
        str | None, typer.Option(help="Only show this run until it is over.", autocompletion=_runs_like)
    ] = None,
) -> None:
    """Train the app in this folder, or a task, on clients started for it, or on a SuperLink; Ctrl-C stops it.

    Example: fedgc run --task digits --clients 3 --set rounds=10
    """
    from fedgc.cli import run as running
    from fedgc.cli.settings import parse

    if attach is not None:
        running.attach(attach, alone=(task, clients, superlink, settings, resume) == (None,) * 5)
        return
    table = {**parse(settings or []), **({"task": task} if task else {})}
    running.run(running.Wanted(clients, table, superlink, resume))


@app.command()
def up(
    clients: Annotated[int, typer.Option(help="Clients to start.")] = 4,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay, until Ctrl-C.")] = False,
) -> None:
    """Start a federation on this machine that stays, for `fedgc run --superlink up`.

    Example: fedgc up --clients 4
    """
    from fedgc.cli.up import up as start

    start(clients, foreground=foreground)


@app.command()
def down() -> None:
    """End the federation that `fedgc up` started.

    Example: fedgc down
    """
    from fedgc.cli.up import down as end

    end()


@app.command()
def config(
    settings: Settings = None,
    run: Annotated[
        str | None, typer.Option("--run", help="The settings that this run had.", autocompletion=_runs_like)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every setting, by group.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the settings: value, default, where the value comes from, what it means.

    Example: fedgc config --all --set rounds=50
    """
    from fedgc.cli import config as shown
    from fedgc.cli.settings import parse

    shown.show(parse(settings or []), run, every=every, as_json=as_json)


@app.command()
def doctor(
    superlink: Annotated[
        str | None, typer.Option(help="Also look at this SuperLink, by its name in Flower's configuration.")
    ] = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Check what a run needs here, and say what to do about what is wrong; exit code 1 where something is.

    Example: fedgc doctor --superlink hospital
    """
    from fedgc.cli import doctor as examined
    from fedgc.cli.settings import parse

    examined.examine(parse(settings or []), superlink, as_json=as_json)


@app.command()
def speeds(run: RunName = None, as_json: AsJson = False, watch: Watch = False) -> None:
    """Show what each client could do so far: speed, spread, failures, trend, share of its work that counted.

    Example: fedgc speeds --run demo-20260101-120000-1 --json
    """
    from fedgc.cli import history

    history.say(lambda store: history.speeds(store, run), as_json=as_json, watch=watch)


@app.command()
def status(run: RunName = None, as_json: AsJson = False, watch: Watch = False) -> None:
    """Show the runs, the round under way, the code and why it was chosen, and when each client was last seen.

    Example: fedgc status --watch
    """
    from fedgc.cli import history

    history.say(lambda store: history.status(store, run), as_json=as_json, watch=watch)


@app.command()
def plan(  # noqa: PLR0913, PLR0917  each is one word of the command line
    trace: Annotated[
        Path | None, typer.Option(help="Plan for the machines of a trace: parquet, pickle or CSV.")
    ] = None,
    run: RunName = None,
    add: Annotated[
        list[float] | None,
        typer.Option(help="Seconds of a step of one more client to try; may be repeated."),
    ] = None,
    model_mb: Annotated[float, typer.Option(help="Size of the model (0: as the last run's).")] = 0.0,
    uplink_mb_s: Annotated[
        float, typer.Option(help="Uplink of a trace's clients (0: uploads take no time).")
    ] = 0.0,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Show what would be chosen for these clients and why, what it is predicted to take, and what would help.

    Example: fedgc plan --add 0.05 --json
    """
    from fedgc.cli.plan import Asked, run_plan
    from fedgc.cli.settings import parse

    asked = Asked(parse(settings or []), run, trace, model_mb, uplink_mb_s, tuple(add or ()))
    run_plan(asked, as_json=as_json)


@app.command()
def watch(
    run: RunName = None,
    host: Annotated[
        str, typer.Option(help="Address to bind to; any but this machine's own needs a token.")
    ] = ("127.0.0.1"),
    port: Annotated[int, typer.Option(help="Port to bind to; 0: any free one.")] = 8600,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|env:NAME",
            help="Ask for the token that this file or variable holds, else FEDGC_TOKEN; "
            "made up where one is needed.",
        ),
    ] = None,
    json_check: Annotated[
        bool, typer.Option("--json-check", help="Look at the page once, print what was found, and end.")
    ] = False,
) -> None:
    """Show runs on a web page that follows them: rounds, clients, bytes, plans, faults; and /metrics.

    Example: fedgc watch --port 8600
    """
    from fedgc.cli.watch import look_at_it, token_of
    from fedgc.cli.watch import watch as serve
    from fedgc.web.serve import Place

    place = Place(host, port, token_of(token, os.environ))
    (look_at_it if json_check else serve)(place, run)


@app.command()
def export(
    form: Annotated[str, typer.Argument(help="csv, parquet, tensorboard or mlflow.")],
    to: Annotated[str, typer.Argument(help="A folder; for mlflow a tracking address or an SQLite file.")],
    run: RunName = None,
) -> None:
    """Write a run for other programs: rounds and clients as tables, measures for TensorBoard and MLflow.

    Example: fedgc export csv tables
    """
    from fedgc.cli.export import export as write

    write(form, to, run)


@app.command()
def sim(  # noqa: PLR0913, PLR0917  each is one word of the command line
    clients: Annotated[
        int | None, typer.Option(help="How many clients; else all of the trace, or 200.", show_default=False)
    ] = None,
    rounds: Annotated[int, typer.Option(help="How many rounds.")] = 20,
    replicas: Annotated[int, typer.Option(help="How many clients have each chunk.")] = 4,
    chunks_each: Annotated[int, typer.Option(help="Chunks, for every client there is.")] = 1,
    blocks: Annotated[int, typer.Option(help="Parts of an update in a codeword; 0: rounds choose.")] = 0,
    model_mb: Annotated[float, typer.Option(help="Size of the model.")] = 50.0,
    uplink_mb_s: Annotated[float, typer.Option(help="Of each client, where there are no links.")] = 12.5,
    downlink_mb_s: Annotated[float, typer.Option(help="The same, downwards.")] = 50.0,
    model: Annotated[
        str, typer.Option(help="How clients behave, where there is no trace.")
    ] = "shifted-exponential",
    trace: Annotated[
        Path | None, typer.Option(help="Times of real machines: parquet, pickle or CSV.")
    ] = None,
    links: Annotated[Path | None, typer.Option(help="Speeds of real lines, as JSON.")] = None,
    policy: Annotated[list[str] | None, typer.Option(help="A policy by name; may be repeated.")] = None,
    seed: Annotated[int, typer.Option(help="The root of every random choice.")] = 0,
    as_json: AsJson = False,
    html: Annotated[Path | None, typer.Option(help="Write a page with the timeline of a round.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write that timeline as a picture.")] = None,
) -> None:
    """Predict a round's time, bytes and wasted work on so many clients, under a virtual clock.

    In --json a time that is null is that of a round that never ends: what it waits for has died.

    Example: fedgc sim --clients 200 --model-mb 50 --html out.html
    """
    from fedgc.cli.sim import Wanted, run_sim
    from fedgc.sim import Request

    request = Request(
        clients=clients,
        rounds=rounds,
        replicas=replicas,
        pieces=chunks_each,
        blocks=blocks,
        model_mb=model_mb,
        uplink_mb_s=uplink_mb_s,
        downlink_mb_s=downlink_mb_s,
        model=model,
        trace=trace,
        links=links,
        policies=tuple(policy or ()),
        seed=seed,
        processes=2,
    )
    run_sim(request, Wanted(as_json, html, png))


@model.command("list")
def list_models(run: RunName = None, as_json: AsJson = False) -> None:
    """Show the versions of a run's model that are kept: round, digest, size, figures.

    Example: fedgc model list --run run-20260101-120000-1
    """
    from fedgc.cli import model as models

    models.show(run, as_json=as_json)


@model.command("export")
def export_model(
    path: Annotated[Path, typer.Argument(help="A new file: .safetensors, or .pt for a state_dict.")],
    run: RunName = None,
    version: Version = None,
) -> None:
    """Write a model for use without fedgc, with its round, digest and figures.

    Example: fedgc model export ward.safetensors
    """
    from fedgc.cli import model as models

    models.export(path, run, version)


@model.command("restore")
def restore_model(
    version: Annotated[int, typer.Argument(help="The version to go on from.")], run: RunName = None
) -> None:
    """Make an earlier version the newest one: what `fedgc run --resume` goes on from. Nothing is deleted.

    Example: fedgc model restore 12 --run run-20260101-120000-1
    """
    from fedgc.cli import model as models

    models.restore(run, version)


@store.command()
def check(as_json: AsJson = False) -> None:
    """Look for damage and count what there is; exit code 1 where something is wrong.

    Example: fedgc store check
    """
    from fedgc.cli import store as upkeep

    upkeep.check(as_json=as_json)


@store.command()
def backup(path: Annotated[Path, typer.Argument(help="A file that does not exist yet.")]) -> None:
    """Copy the store to a new file, also while runs write to it.

    Example: fedgc store backup /backups/fedgc-monday.db
    """
    from fedgc.cli import store as upkeep

    upkeep.backup(path)


@store.command()
def vacuum(
    keep: Annotated[
        int | None, typer.Option(help="First fold the client rows of all but so many rounds.")
    ] = None,
) -> None:
    """Give room that is no longer used back to the disk.

    Example: fedgc store vacuum --keep 10000
    """
    from fedgc.cli import store as upkeep

    upkeep.vacuum(keep)
