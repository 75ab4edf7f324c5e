"""`fedgc sim`: its options and their help."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedgc.cli.options import AsJson, Settings, is_given, must_be_alone, runs_like
from fedgc.errors import Unusable

if TYPE_CHECKING:
    from fedgc.deploy.app_folder import Setting

OF_TRAINING = (
    "train", "partition", "processes", "stack", "ray", "settings", "clients", "rounds", "seed", "model",
    "trace", "links", "uplink_mb_s", "downlink_mb_s", "server_mb_s", "upload_slots", "as_json", "html",
    "checkpoint",
)  # fmt: skip


def sim(  # noqa: PLR0913, PLR0917  one for each option
    context: typer.Context,
    clients: Annotated[
        int | None,
        typer.Option(help="How many clients; by default all of the trace, or 200.", show_default=False),
    ] = None,
    rounds: Annotated[int, typer.Option(help="How many rounds.")] = 20,
    replicas: Annotated[
        int | None,
        typer.Option(
            help="Clients that hold each chunk; by default 4, or as many as there are clients.",
            show_default=False,
        ),
    ] = None,
    chunks_each: Annotated[int, typer.Option(help="Chunks per client.")] = 1,
    blocks: Annotated[int, typer.Option(help="Blocks of an update; 0: chosen in each round.")] = 0,
    model_mb: Annotated[float, typer.Option(help="Size of the model.")] = 50.0,
    uplink_mb_s: Annotated[str, typer.Option(help="Uplinks; several, as 12.5,1, repeat.")] = "12.5",
    downlink_mb_s: Annotated[str, typer.Option(help="Downlinks, in the same way.")] = "50",
    server_mb_s: Annotated[float, typer.Option(help="Link of the server, shared; 0: no limit.")] = 0.0,
    upload_slots: Annotated[
        int,
        typer.Option(help="Clients that upload at a time; 0: all, or with --train links.upload-slots."),
    ] = 0,
    model: Annotated[
        str,
        typer.Option(
            help="Model of the clients, without --trace: shifted-exponential, bimodal, bimodal-persistent, "
            "mild, fail-stop, drift or homogeneous."
        ),
    ] = "shifted-exponential",
    trace: Annotated[Path | None, typer.Option(help="Times of real machines, as CSV.")] = None,
    links: Annotated[
        Path | None, typer.Option(help="Speeds of links: of users, as JSON, or of each client, as CSV.")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="A policy by the beginning of its name: fedgc static, fedgc skip, fedgc steer, uncoded, "
            "drop slowest, over-selection, work queue or published partial; may be repeated. "
            "The clients of fedgc static follow no command during their work, those of fedgc skip leave out "
            "chunks, and those of fedgc steer also take chunks next, as real clients do."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="The root of every random choice.")] = 0,
    like: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Predict the second half of a past run from its first, and show the error.",
            autocompletion=runs_like,
        ),
    ] = None,
    sweep: Annotated[
        Path | None,
        typer.Option(
            help="Play the settings, scenarios and seeds of this TOML file, and recommend settings."
        ),
    ] = None,
    as_json: AsJson = False,
    html: Annotated[Path | None, typer.Option(help="Write a page with the timeline of a round.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write that timeline as a picture.")] = None,
    train: Annotated[
        str | None,
        typer.Option(help="Train this task on the simulated clients: a shipped task, or module:attribute."),
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            help="With --train, how data are divided among clients: iid, dirichlet:ALPHA, quantity:ALPHA, "
            "shards:COUNT or owner."
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(help="With --train, how many train; by default one for each core.", min=1),
    ] = None,
    stack: Annotated[
        int,
        typer.Option(
            help="With --train, how many clients to train as one batch of models, in one process: "
            "faster on a GPU, and for small models.",
            min=1,
        ),
    ] = 1,
    ray: Annotated[
        str,
        typer.Option(help="With --train, a Ray cluster on which to train: its address, auto, or local."),
    ] = "",
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            help="With --train, a new file to keep the simulation in, until it is over. With --sweep, a file "
            "for the runs that have ended; those in it are not played again."
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="CHECKPOINT",
            help="Go on with the simulation that is kept in this file; the result is the same to the bit.",
        ),
    ] = None,
    settings: Settings = None,
) -> None:
    """Predict a round's time, bytes and wasted work on simulated clients, under a virtual clock.

    With --train, the clients train: the page and --json have the figures of the model over time and bytes.

    In --json, a time of null belongs to a round that never ends because a client it waits for has died.

    Example: fedgc sim --clients 200 --model-mb 50 --html out.html

    Example: fedgc sim --train digits --clients 200 --partition dirichlet:0.3 --set learning-rate=0.05
    """
    if like is not None:
        from fedgc.cli.sim_like import run_like  # here, since help must not wait for sqlalchemy

        must_be_alone(context, "like", "as_json")
        run_like(like, as_json=as_json)
        return
    if sweep is not None:
        from fedgc.cli.sim_sweep import run_sim_sweep

        must_be_alone(context, "sweep", "as_json", "html", "checkpoint")
        run_sim_sweep(sweep, html, checkpoint, as_json=as_json)
        return
    from fedgc.cli.sim import Wanted, run_sim, speeds
    from fedgc.sim import Request

    _effective(context)
    request = Request(
        clients=clients,
        rounds=rounds,
        replicas=replicas if train is None else 1,
        pieces=chunks_each,
        blocks=blocks,
        model_mb=model_mb,
        uplink_mb_s=speeds("--uplink-mb-s", uplink_mb_s),
        downlink_mb_s=speeds("--downlink-mb-s", downlink_mb_s),
        server_mb_s=server_mb_s,
        upload_slots=upload_slots,
        model=model,
        trace=trace,
        links=links,
        policies=tuple(policy or ()),
        seed=seed,
        processes=2,
    )
    wanted = Wanted(as_json, html, png)
    if resume is not None:
        from fedgc.cli.sim_train import resume_training

        must_be_alone(context, "resume", "processes", "ray", "as_json", "html")
        resume_training(resume, wanted, processes, ray)
        return
    if train is None:
        of_training: dict[str, object] = {
            "--partition": partition, "--processes": processes, "--stack": stack > 1, "--ray": ray,
            "--checkpoint": checkpoint, "--set": settings,
        }  # fmt: skip
        if given := [name for name, value in of_training.items() if value]:
            other = " or --sweep" if given == ["--checkpoint"] else ""
            raise Unusable(f"saw {', '.join(given)}, needed --train{other} with it")
        run_sim(request, wanted)
        return
    must_be_alone(context, *OF_TRAINING)
    from fedgc.cli.sim_train import Training, begin_training

    training = Training(train, request, _parsed(context, settings), partition, processes, ray, stack)
    begin_training(training, wanted, checkpoint)


def _parsed(context: typer.Context, settings: list[str] | None) -> "dict[str, Setting]":
    """Return the settings of a training; refuse one that an option gives as well."""
    from fedgc.cli.settings import parse

    table = parse(settings or ())
    for name in ("rounds", "seed"):
        if name in table and is_given(context, name):
            raise Unusable(f"--{name}: saw the setting {name} = {table[name]} beside it, needed one of them")
    return table


def _effective(context: typer.Context) -> None:
    """Refuse options that have no effect beside others."""
    from fedgc.sim.sweep_file import WITHOUT_EFFECT  # here, since help must not wait for numpy

    for chosen, unused in WITHOUT_EFFECT:
        if is_given(context, chosen) and is_given(context, unused.replace("-", "_")):
            raise Unusable(f"--{chosen}: saw --{unused} beside it, needed one of them")
