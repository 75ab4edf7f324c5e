"""`fedgc sim`: its options and their help."""

from pathlib import Path
from typing import Annotated

import typer

from fedgc.cli.options import AsJson


def sim(  # noqa: PLR0913, PLR0917  one for each option
    clients: Annotated[
        int | None,
        typer.Option(help="How many clients; by default all of the trace, or 200.", show_default=False),
    ] = None,
    rounds: Annotated[int, typer.Option(help="How many rounds.")] = 20,
    replicas: Annotated[int, typer.Option(help="Clients that hold each chunk.")] = 4,
    chunks_each: Annotated[int, typer.Option(help="Chunks per client.")] = 1,
    blocks: Annotated[int, typer.Option(help="Blocks of an update; 0: chosen in each round.")] = 0,
    model_mb: Annotated[float, typer.Option(help="Size of the model.")] = 50.0,
    uplink_mb_s: Annotated[str, typer.Option(help="Uplinks; several, as 12.5,1, repeat.")] = "12.5",
    downlink_mb_s: Annotated[str, typer.Option(help="Downlinks, in the same way.")] = "50",
    server_mb_s: Annotated[float, typer.Option(help="Link of the server, shared; 0: no limit.")] = 0.0,
    upload_slots: Annotated[int, typer.Option(help="Clients that upload at a time; 0: all.")] = 0,
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
            "drop slowest, over-selection, work queue or published partial; may be repeated."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="The root of every random choice.")] = 0,
    as_json: AsJson = False,
    html: Annotated[Path | None, typer.Option(help="Write a page with the timeline of a round.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write that timeline as a picture.")] = None,
) -> None:
    """Predict a round's time, bytes and wasted work on simulated clients, under a virtual clock.

    In --json, a time of null belongs to a round that never ends because a client it waits for has died.

    Example: fedgc sim --clients 200 --model-mb 50 --html out.html
    """
    from fedgc.cli.sim import Wanted, run_sim, speeds
    from fedgc.sim import Request

    request = Request(
        clients=clients,
        rounds=rounds,
        replicas=replicas,
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
    run_sim(request, Wanted(as_json, html, png))
