"""The commands, their arguments and their help; the called modules do the work."""

import os
import threading
from pathlib import Path
from typing import Annotated

import typer

from fedgc.cli.data import data
from fedgc.cli.deploy import deploy
from fedgc.cli.keys import keys
from fedgc.cli.leave import leave
from fedgc.cli.model_commands import model
from fedgc.cli.options import (
    AsJson,
    Best,
    Client,
    Clients,
    KeptOn,
    KeptSettings,
    OnSuperlink,
    Resume,
    Run,
    RunName,
    Script,
    Settings,
    Task,
    Version,
    Watch,
    must_be_alone,
    runs_like,
    unless_replaced,
    with_variable,
)
from fedgc.cli.policy_commands import audit, policy
from fedgc.cli.queue_commands import queue
from fedgc.cli.report import report
from fedgc.cli.sim_command import sim
from fedgc.cli.store import store
from fedgc.cli.task_commands import task as tasks
from fedgc.errors import Unusable

app = typer.Typer(
    name="fedgc",
    help="Federated and edge training on Flower that counts partial work.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 success; 1 another program, the network or the disk failed, or a check did; "
    "2 invalid input; 130 Ctrl-C. Any command takes --debug, which prints the traceback of an error.",
)


app.add_typer(model, name="model")
app.add_typer(store, name="store")
app.add_typer(queue, name="queue")
app.add_typer(keys, name="keys")
app.add_typer(data, name="data")
app.add_typer(deploy, name="deploy")
app.add_typer(tasks, name="task")
app.add_typer(policy, name="policy")
app.add_typer(audit, name="audit")


@app.callback()
def _root() -> None:
    """Show the commands if none is given."""


@app.command()
def demo(  # noqa: PLR0913, PLR0917  one for each option
    rounds: Annotated[
        int | None, typer.Option(help="Rounds of each run; by default 12, or 24 for a single run.", min=1)
    ] = None,
    work: Annotated[
        str | None, typer.Option(help="local or coded; by default one run of each, and local under masks.")
    ] = None,
    gate: Annotated[
        str | None, typer.Option(help="Which gate (`fedgc config --all` lists them); sets gate.name.")
    ] = None,
    sites: Annotated[int, typer.Option(help="Clients; under masks, each is a site.")] = 4,
    clients: Annotated[
        int | None,
        typer.Option(help="Clients of each site: sites are fleets, and one single client takes part."),
    ] = None,
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
    from fedgc.cli.demo import (
        DemoFleet,
        run_demo,
    )  # here, since help must not wait for the imports of a federation
    from fedgc.cli.settings import parse

    chosen = [f"{name}={value}" for name, value in (("work", work), ("gate.name", gate)) if value is not None]
    given = parse([*chosen, *(settings or [])])
    if clients is None:
        run_demo(rounds, given, DemoFleet(sites, secrecy), folder)
        return
    from fedgc.cli.demo_sites import Sites, run_sites

    run_sites(Sites(sites, clients), rounds, given, folder)


@app.command()
def gateway(
    folder: Annotated[Path | None, typer.Option("--app", help="The folder of the consortium's app.")] = None,
    consortium: Annotated[
        int, typer.Option(help="Flower's number of the consortium's run; names a run of its own for it.")
    ] = 0,
) -> None:
    """Run the fleet of a site for its gateway: a SuperNode with `site-fleet` in its node config starts this.

    Example: fedgc gateway --app .
    """
    from fedgc.cli.gateway import serve_site

    serve_site(folder, consortium)


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
def run(  # noqa: PLR0913, PLR0917  one for each option
    task: Task = None,
    script: Script = None,
    clients: Clients = None,
    client: Client = None,
    superlink: OnSuperlink = None,
    settings: Settings = None,
    resume: Resume = None,
    attach: Annotated[
        str | None, typer.Option(help="Only show this run until it is over.", autocompletion=runs_like)
    ] = None,
) -> None:
    """Train the app in this folder, a task or a script, here or on a SuperLink; Ctrl-C stops the run.

    Example: fedgc run --script train.py --clients 3 --set rounds=10
    """
    from fedgc.cli.signals import NOTHING_STARTED, after_ctrl_c

    with after_ctrl_c(lambda: NOTHING_STARTED):
        from fedgc.cli import run as running
        from fedgc.cli.clients import parse_clients
        from fedgc.cli.settings import parse, trained

    if attach is not None:
        running.attach(attach, alone=not any((task, script, clients, client, superlink, settings, resume)))
        return
    table = {**parse(settings or []), **trained(task, script)}
    running.run(running.Wanted(clients, table, superlink, resume, parse_clients(client or [])))


@app.command()
def serve(  # noqa: PLR0913, PLR0917  one for each option
    context: typer.Context,
    task: Task = None,
    script: Script = None,
    clients: Clients = None,
    client: Client = None,
    superlink: KeptOn = None,
    settings: KeptSettings = None,
    resume: Resume = None,
    restarts: Annotated[
        int, typer.Option(help="Give up after so many restarts in a row without a new round.", min=0)
    ] = 10,
    stay: Annotated[
        bool,
        typer.Option(
            "--stay",
            help="Stay once the run is complete or was stopped, as a container has to; until a signal.",
        ),
    ] = False,
    of_queue: Annotated[
        bool,
        typer.Option("--queue", help="Run the runs of `fedgc queue` one after another, until a signal."),
    ] = False,
) -> None:
    """Keep a run alive: train as `fedgc run` does, and resume the run whenever its server ends early.

    A run of the given name (--set run=NAME) that was begun before is resumed. With --queue, each run has the
    settings that were given to `fedgc queue add`.

    Example: fedgc serve --superlink hospital --set run=ward --set rounds=100
    """
    from fedgc.cli import run as running
    from fedgc.cli.clients import parse_clients
    from fedgc.cli.serve import serve as keep
    from fedgc.cli.serve_queue import serve_queue
    from fedgc.cli.settings import parse, trained

    own, superlink = parse_clients(client or []), unless_replaced(context, superlink)
    if of_queue:
        must_be_alone(context, "of_queue", "superlink", "clients", "client", "restarts")
        serve_queue(running.Wanted(clients, {}, superlink, own=own), restarts)
        return
    table = {**parse(with_variable(settings)), **trained(task, script)}
    rest = threading.Event().wait if stay else None
    keep(running.Wanted(clients, table, superlink, resume, own), restarts, rest)


@app.command()
def evaluate(  # noqa: PLR0913, PLR0917  one for each option
    run: Annotated[str, typer.Argument(help="The run; latest is the newest.", autocompletion=runs_like)],
    version: Version = None,
    best: Best = False,
    clients: Annotated[
        int | None,
        typer.Option(help="Clients to start on this machine, or to wait for; by default as the run."),
    ] = None,
    client: Client = None,
    superlink: Annotated[
        str | None,
        typer.Option(
            help="Evaluate on this SuperLink: a name in Flower's configuration, or up for `fedgc up`."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Have the clients of a run score one of its models on their data; the run does not change.

    By default they are those of the run: on its SuperLink, or on this machine with the same settings.

    Example: fedgc evaluate run-20260101-120000-1 --best
    """
    from fedgc.cli import evaluate as evaluation
    from fedgc.cli.clients import parse_clients
    from fedgc.cli.run_place import RunPlace

    place = RunPlace(clients, superlink, parse_clients(client or []))
    evaluation.evaluate(evaluation.Asked(run, version, best, place), as_json=as_json)


@app.command()
def up(
    clients: Annotated[int | None, typer.Option(help="Clients to start; 4 by default.")] = None,
    client: Client = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Run in the foreground, until Ctrl-C.")
    ] = False,
) -> None:
    """Start a federation on this machine that keeps running, for `fedgc run --superlink up`.

    Example: fedgc up --clients 4
    """
    from fedgc.cli.up import up as start

    start(clients, client or [], foreground=foreground)


@app.command()
def down() -> None:
    """End the federation that `fedgc up` started.

    Example: fedgc down
    """
    from fedgc.cli.up import down as end

    end()


app.command()(leave)


@app.command()
def config(
    run: Annotated[
        str | None, typer.Argument(help="Show the settings of this run.", autocompletion=runs_like)
    ] = None,
    settings: Settings = None,
    every: Annotated[bool, typer.Option("--all", help="Every setting, by group.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the settings: value, default, source of the value, and meaning.

    Example: fedgc config --all --set rounds=50
    """
    from fedgc.cli import config as shown
    from fedgc.cli.settings import parse

    shown.show(parse(settings or []), run, every=every, as_json=as_json)


@app.command()
def doctor(
    superlink: Annotated[
        str | None, typer.Option(help="Also check this SuperLink, by its name in Flower's configuration.")
    ] = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Check what a run needs on this machine and how to fix problems; exit code 1 if there are any.

    Example: fedgc doctor --superlink hospital
    """
    from fedgc.cli import doctor as examined
    from fedgc.cli.settings import parse

    examined.examine(parse(settings or []), superlink, as_json=as_json)


@app.command()
def speeds(
    run: Run = None,
    every: Annotated[
        bool, typer.Option("--all", help="All clients that have worked at the task, in any run.")
    ] = False,
    as_json: AsJson = False,
    watch: Watch = False,
) -> None:
    """Show the speed, spread, failures and trend of each client of a run, and what share of its work counted.

    Example: fedgc speeds demo-20260101-120000-1 --json
    """
    from fedgc.cli import history

    history.print_answer(lambda store: history.speeds(store, run, every=every), as_json=as_json, watch=watch)


@app.command()
def status(
    run: Run = None,
    why: Annotated[
        bool,
        typer.Option(
            "--why",
            help="Only the reason for the state of the run: whom it waits for, or why it ended; the data "
            "that is present and counted; what to do.",
        ),
    ] = False,
    as_json: AsJson = False,
    watch: Watch = False,
) -> None:
    """Show the runs, the current round, the code and its reason, and when each client was last seen.

    Example: fedgc status --why
    """
    from fedgc.cli import history

    ask = history.why if why else history.status
    history.print_answer(lambda store: ask(store, run), as_json=as_json, watch=watch)


@app.command()
def plan(  # noqa: PLR0913, PLR0917  one for each option
    context: typer.Context,
    run: Run = None,
    trace: Annotated[Path | None, typer.Option(help="Plan for the machines of a trace, as CSV.")] = None,
    add: Annotated[
        list[float] | None,
        typer.Option(help="Add a client with this step time in seconds; may be repeated."),
    ] = None,
    model_mb: Annotated[float, typer.Option(help="Size of the model (0: as the last run's).")] = 0.0,
    uplink_mb_s: Annotated[
        float,
        typer.Option(
            help="Uplink of the clients: with --trace and --model-mb, or with --model-gb (0: unknown).", min=0
        ),
    ] = 0.0,
    model_gb: Annotated[float, typer.Option(help="Plan local work on a model of this size.")] = 0.0,
    clients: Annotated[int | None, typer.Option(help="With --model-gb: how many clients.")] = None,
    client_gain: Annotated[
        float | None,
        typer.Option(help="Say how many clients shorten a round by this share each, such as 0.02."),
    ] = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Show the code chosen for these clients, its reason, its predicted time, and possible improvements.

    For local work: the quorum with which these clients give whole updates soonest, and whether updates
    should count late, also in groups by speed.

    With --model-gb: the time, bytes, memory and disk that local work on such a model needs.

    Example: fedgc plan --add 0.05 --json
    """
    from fedgc.cli.plan import Asked, run_plan
    from fedgc.cli.plan_model import ModelAsked, plan_model
    from fedgc.cli.settings import parse

    if clients is not None and not model_gb:
        raise Unusable(f"--clients: saw {clients} without --model-gb, needed both")
    if model_gb:
        must_be_alone(context, "model_gb", "clients", "uplink_mb_s", "settings", "as_json")
        return plan_model(ModelAsked(parse(settings or []), model_gb, clients, uplink_mb_s), as_json=as_json)
    asked = Asked(parse(settings or []), run, trace, model_mb, uplink_mb_s, tuple(add or ()), client_gain)
    return run_plan(asked, as_json=as_json)


@app.command()
def watch(
    run: Run = None,
    host: Annotated[
        str, typer.Option(help="Address to bind to; any but this machine's own needs a token.")
    ] = ("127.0.0.1"),
    port: Annotated[int, typer.Option(help="Port to bind to; 0: any free one.")] = 8600,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|env:NAME",
            help="File or variable with the token that the page asks for, else FEDGC_TOKEN; "
            "a random token if one is needed.",
        ),
    ] = None,
    json_check: Annotated[
        bool, typer.Option("--json-check", help="Check the page once, print the results, and exit.")
    ] = False,
    client_gain: Annotated[
        float | None,
        typer.Option(
            help="Share of a round by which each client of fedgc_clients_wanted shortens it (0.02)."
        ),
    ] = None,
) -> None:
    """Serve a web page that follows runs: rounds, clients, bytes, plans, faults; and /metrics.

    Example: fedgc watch --port 8600
    """
    from fedgc.cli.watch import check_page, token_of
    from fedgc.cli.watch import watch as serve
    from fedgc.web.serve import Place

    place = Place(host, port, token_of(token, os.environ))
    check_page(place, run) if json_check else serve(place, run, client_gain)


@app.command()
def export(
    form: Annotated[str, typer.Argument(help="csv, parquet, tensorboard or mlflow.")],
    to: Annotated[str, typer.Argument(help="A folder; for mlflow a tracking address or an SQLite file.")],
    run: RunName = None,
) -> None:
    """Export a run: rounds, clients and their figures as tables, or for TensorBoard or MLflow.

    Example: fedgc export csv tables
    """
    from fedgc.cli.export import export as write

    write(form, to, run)


app.command()(report)


app.command()(sim)
