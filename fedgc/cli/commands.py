"""The commands, their words and their help; what they do stands in the rooms that they call."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="fedgc",
    help="Federated and edge training on Flower in which no finished work is thrown away.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="Any command takes --debug: an error then shows where it came from.",
)

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", help="A setting of the run, as name=value; may be repeated."),
]


RunName = Annotated[
    str | None, typer.Option("--run", help="The run to ask about; the newest where none is named.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Watch = Annotated[bool, typer.Option("--watch", help="Show it again every second, until Ctrl-C.")]

Quick = Annotated[bool, typer.Option("--quick", help="Measure less, in under a minute.")]

store = typer.Typer(help="Look after the store.", no_args_is_help=True)
bench = typer.Typer(help="Measure what fedgc claims, beside what it is compared with.", no_args_is_help=True)
app.add_typer(store, name="store")
app.add_typer(bench, name="bench")


@app.callback()
def _root() -> None:
    """Show the commands where none is given."""


@app.command()
def demo(
    rounds: Annotated[int, typer.Option(help="Rounds to train.")] = 30,
    settings: Settings = None,
) -> None:
    """Train digits on four devices of this machine: one is four times slower, one is killed and comes back.

    Example: fedgc demo --rounds 30 --set blocks=1
    """
    from fedgc.cli.demo import run_demo  # here, as help must not wait for what a federation needs
    from fedgc.cli.settings import parse

    run_demo(rounds, parse(settings or []))


@app.command()
def run(
    task: Annotated[str | None, typer.Option(help="A shipped task, or module:attribute of your own.")] = None,
    devices: Annotated[int, typer.Option(help="Devices to start on this machine.")] = 4,
    settings: Settings = None,
    resume: Annotated[str | None, typer.Option(help="Go on with this run, from its last checkpoint.")] = None,
) -> None:
    """Train a task on devices that are started on this machine for it.

    Example: fedgc run --task digits --devices 3 --set rounds=10
    """
    from fedgc.cli.run import run_here
    from fedgc.cli.settings import parse

    table = parse(settings or [])
    run_here(devices, {**table, **({"task": task} if task else {})}, resume)


@app.command()
def speeds(run: RunName = None, as_json: AsJson = False, watch: Watch = False) -> None:
    """Show what each device could do so far: speed, spread, failures, trend, share of its work that counted.

    Example: fedgc speeds --run demo-20260101-120000-1 --json
    """
    from fedgc.cli import history

    history.say(lambda store: history.speeds(store, run), as_json=as_json, watch=watch)


@app.command()
def status(run: RunName = None, as_json: AsJson = False, watch: Watch = False) -> None:
    """Show the runs, the round under way, the code and why it was chosen, and when each device was last seen.

    Example: fedgc status --watch
    """
    from fedgc.cli import history

    history.say(lambda store: history.status(store, run), as_json=as_json, watch=watch)


@app.command()
def sim(  # noqa: PLR0913, PLR0917  each is one word of the command line
    devices: Annotated[int, typer.Option(help="How many devices.")] = 200,
    rounds: Annotated[int, typer.Option(help="How many rounds.")] = 20,
    model_mb: Annotated[float, typer.Option(help="Size of the model.")] = 50.0,
    model: Annotated[
        str, typer.Option(help="How devices behave, where there is no trace.")
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
    """Predict a round's time, bytes and wasted work on so many devices, under a virtual clock.

    Example: fedgc sim --devices 200 --model-mb 50 --html out.html
    """
    from fedgc.cli.sim import Wanted, run_sim
    from fedgc.sim import Request

    request = Request(
        devices=devices,
        rounds=rounds,
        model_mb=model_mb,
        model=model,
        trace=trace,
        links=links,
        policies=tuple(policy or ()),
        seed=seed,
        processes=2,
    )
    run_sim(request, Wanted(as_json, html, png))


@store.command()
def check(as_json: AsJson = False) -> None:
    """Look for damage and count what there is; exit code 1 where something is wrong.

    Example: fedgc store check
    """
    from fedgc.cli import upkeep

    upkeep.check(as_json=as_json)


@store.command()
def backup(path: Annotated[Path, typer.Argument(help="A file that does not exist yet.")]) -> None:
    """Copy the store to a new file, also while runs write to it.

    Example: fedgc store backup /backups/fedgc-monday.db
    """
    from fedgc.cli import upkeep

    upkeep.backup(path)


@store.command()
def vacuum(
    keep: Annotated[
        int | None, typer.Option(help="First fold the device rows of all but so many rounds.")
    ] = None,
) -> None:
    """Give room that is no longer used back to the disk.

    Example: fedgc store vacuum --keep 10000
    """
    from fedgc.cli import upkeep

    upkeep.vacuum(keep)


@bench.command("codes")
def bench_codes(as_json: AsJson = False, quick: Quick = False) -> None:
    """Condition, error and time of the codes, of the published one and of older ones.

    Example: fedgc bench codes --json
    """
    from fedgc.bench.codes import bench_codes as measure
    from fedgc.cli.bench import show

    show(measure(quick=quick), as_json=as_json)


@bench.command("rounds")
def bench_rounds(
    as_json: AsJson = False,
    quick: Quick = False,
    full: Annotated[
        bool, typer.Option("--full", help="Measure more devices and rounds; takes longer.")
    ] = False,
    traces: Annotated[
        Path | None,
        typer.Option(
            help="A folder with traces of real machines: *.parquet (GPU jobs), *.pkl (AWS Lambda), *.csv, "
            "flash_speed_distri.json (links), client_device_capacity, client_behave_trace (FedScale)."
        ),
    ] = None,
) -> None:
    """Every policy under every weather, the cases in which fedgc does not win first.

    Example: fedgc bench rounds --traces traces --json
    """
    from fedgc.bench.cells import told
    from fedgc.bench.rounds import FULL, QUICK, USUAL
    from fedgc.bench.rounds import bench_rounds as measure
    from fedgc.cli.bench import show

    report = measure(QUICK if quick else FULL if full else USUAL, traces)
    show(report, as_json=as_json, lines=told(report))


@bench.command("link")
def bench_link(as_json: AsJson = False, quick: Quick = False) -> None:
    """Overhead of a round over each link, beside Flower's own FedAvg and a bare stream, on real processes.

    Example: fedgc bench link --json
    """
    from fedgc.bench.link import bench_link as measure
    from fedgc.cli.bench import show

    show(measure(quick=quick), as_json=as_json)


@bench.command("tuner")
def bench_tuner(
    as_json: AsJson = False,
    quick: Quick = False,
    traces: Annotated[Path | None, typer.Option(help="A folder with traces of real machines.")] = None,
) -> None:
    """What the tuner chooses from early rounds, against the best fixed setting on later ones.

    Example: fedgc bench tuner --traces traces --json
    """
    from fedgc.bench.tuner import bench_tuner as measure
    from fedgc.cli.bench import show

    show(measure(quick=quick, traces=traces), as_json=as_json)
