"""The benchmark commands: fedgc measured beside other methods.

    python -m benchmarks NAME --json

prints one JSON object with `figures`, `rows`, `machine` and `seeds`. Figures that miss their target come
first. With `--save` it also writes benchmarks/results/NAME.json, from which the documentation gets its
figures.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.saved import wholly
from fedgc.cli import run_program

app = typer.Typer(help="Benchmark fedgc against other methods.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Traces = Annotated[
    Path | None,
    typer.Option(
        help="A folder with traces of real machines: *.parquet (GPU jobs), *.pkl (AWS Lambda), *.csv, "
        "flash_speed_distri.json (links), client_device_capacity, client_behave_trace (FedScale)."
    ),
]
Quick = Annotated[bool, typer.Option("--quick", help="Measure less, in under a minute.")]
PYTHON = Path(sys.executable)
Save = Annotated[bool, typer.Option("--save", help="Write benchmarks/results/NAME.json.", callback=wholly)]


@app.command("codes")
def bench_codes(as_json: AsJson = False, quick: Quick = False, save: Save = False) -> None:
    """Condition, error and time of the codes, beside the published code and older ones.

    Example: python -m benchmarks codes --json
    """
    from benchmarks.codes import bench_codes as measure
    from benchmarks.printing import show

    show(measure(quick=quick), as_json=as_json, save=save)


@app.command("codecs")
def bench_codecs(as_json: AsJson = False, quick: Quick = False, save: Save = False) -> None:
    """Final loss against bytes of every codec on a small transformer, beside DiLoCo and SparseLoCo.

    Example: python -m benchmarks codecs --json
    """
    from benchmarks.large_codecs import bench_codecs as measure
    from benchmarks.large_codecs import lines
    from benchmarks.printing import show

    report = measure(quick=quick)
    show(report, as_json=as_json, save=save, lines=lines(report))


@app.command("rounds")
def bench_rounds(
    as_json: AsJson = False,
    quick: Quick = False,
    save: Save = False,
    full: Annotated[
        bool, typer.Option("--full", help="Measure more clients and rounds; takes longer.")
    ] = False,
    traces: Traces = None,
) -> None:
    """Every policy under every scenario, the cases in which fedgc does not win first.

    Example: python -m benchmarks rounds --traces traces --json
    """
    from benchmarks.cells import text_lines
    from benchmarks.printing import show
    from benchmarks.rounds import FULL, QUICK, USUAL
    from benchmarks.rounds import bench_rounds as measure

    report = measure(QUICK if quick else FULL if full else USUAL, traces)
    show(report, as_json=as_json, save=save, lines=text_lines(report))


Full = Annotated[bool, typer.Option("--full", help="Measure the whole matrix; takes hours.")]
Made = Annotated[float, typer.Option("--gb", help="Gigabytes of made data.", min=0.001)]
Data = Annotated[
    Path | None,
    typer.Option(
        help="An npz file with x_train (gray values), y_train, writer, x_test, y_test; else digits are used."
    ),
]


@app.command("gate")
def bench_gate(
    as_json: AsJson = False,
    quick: Quick = False,
    save: Save = False,
    full: Full = False,
    data: Data = None,
    png: Annotated[Path | None, typer.Option(help="Where to write the frontiers as a picture.")] = None,
) -> None:
    """Accuracy against syncs, bytes and seconds: gates and local work beside other methods.

    Example: python -m benchmarks gate --data femnist.npz --png frontier.png --json
    """
    from benchmarks.gate import FULL, QUICK, USUAL, text_lines
    from benchmarks.gate import bench_gate as measure
    from benchmarks.printing import draw, show
    from fedgc.cli.image_files import drawable

    drawable(png)
    report, measured = measure(QUICK if quick else FULL if full else USUAL, data)
    if png is not None:
        draw(measured, png)
    show(report, as_json=as_json, save=save, lines=text_lines(measured))


@app.command("accuracy")
def bench_accuracy(
    as_json: AsJson = False,
    quick: Quick = False,
    save: Save = False,
    full: Full = False,
    data: Data = None,
    traces: Annotated[
        Path | None, typer.Option(help="A folder with times of real machines: *.parquet, *.pkl, *.csv.")
    ] = None,
) -> None:
    """Simulated seconds and bytes to a target: ours beside FedAvg, FedAvgM, BSP, SelSync, gradient coding.

    Example: python -m benchmarks accuracy --data femnist.npz --traces traces --json
    """
    from benchmarks.accuracy import FULL, QUICK, USUAL, text_lines
    from benchmarks.accuracy import bench_accuracy as measure
    from benchmarks.printing import show

    report = measure(QUICK if quick else FULL if full else USUAL, data, traces)
    show(report, as_json=as_json, save=save, lines=text_lines(report))


@app.command("groups")
def bench_groups(
    as_json: AsJson = False, quick: Quick = False, save: Save = False, traces: Traces = None, gb: Made = 0.5
) -> None:
    """Simulated seconds to a target with clients in groups by speed: beside rounds, partial work and FedBuff.

    Before that, it places so much made data on the clients of a site, as `placement` does.

    Example: python -m benchmarks groups --traces traces --json
    """
    from benchmarks.groups import QUICK, USUAL, text_lines
    from benchmarks.groups import bench_groups as measure
    from benchmarks.printing import show

    report = measure(QUICK if quick else USUAL, traces, gb)
    show(report, as_json=as_json, save=save, lines=text_lines(report))


@app.command("link")
def bench_link(as_json: AsJson = False, quick: Quick = False, save: Save = False) -> None:
    """Overhead of a round over each link, beside Flower's own FedAvg and a plain stream, on real processes.

    Example: python -m benchmarks link --json
    """
    from benchmarks.link import bench_link as measure
    from benchmarks.printing import show

    show(measure(quick=quick), as_json=as_json, save=save)


@app.command("tuner")
def bench_tuner(
    as_json: AsJson = False,
    quick: Quick = False,
    save: Save = False,
    traces: Traces = None,
) -> None:
    """The tuner's choices from early rounds, compared with the best fixed setting on later ones.

    Example: python -m benchmarks tuner --traces traces --json
    """
    from benchmarks.printing import show
    from benchmarks.tuner import bench_tuner as measure

    show(measure(quick=quick, traces=traces), as_json=as_json, save=save)


@app.command("secagg")
def bench_secagg(
    as_json: AsJson = False,
    quick: Quick = False,
    save: Save = False,
    large: Annotated[
        bool, typer.Option("--large", help="Also vectors of 10^8 numbers; takes longer.")
    ] = False,
) -> None:
    """Seconds and bytes of secure aggregation, beside Flower's SecAgg+, plain sums and the machine's limits.

    Example: python -m benchmarks secagg --json
    """
    from benchmarks.printing import show
    from benchmarks.secagg import LARGE, QUICK, USUAL, lines
    from benchmarks.secagg import bench_secagg as measure

    report = measure(QUICK if quick else LARGE if large else USUAL)
    show(report, as_json=as_json, save=save, lines=lines(report))


@app.command("loop")
def bench_loop(
    as_json: AsJson = False,
    quick: Quick = False,
    save: Save = False,
    device: Annotated[str, typer.Option(help="Where the model of the script is, such as cuda.")] = "cpu",
) -> None:
    """What a training script of the user's own costs: a step, an interrupt, a large model in and out.

    Example: python -m benchmarks loop --json
    """
    from benchmarks.loop import bench_loop as measure
    from benchmarks.printing import show

    show(measure(quick=quick, device=device), as_json=as_json, save=save)


@app.command("hostile")
def bench_hostile(as_json: AsJson = False, quick: Quick = False, save: Save = False) -> None:
    """Accuracy and time with hostile clients, by aggregation rule and attack, the worst rows first.

    Example: python -m benchmarks hostile --json
    """
    from benchmarks.hostile import bench_hostile as measure
    from benchmarks.printing import show

    show(measure(quick=quick), as_json=as_json, save=save)


@app.command("privacy")
def bench_privacy(as_json: AsJson = False, quick: Quick = False, save: Save = False) -> None:
    """Accuracy with client-level privacy, beside Flower's at equal epsilon; accountant's error; an attack.

    Example: python -m benchmarks privacy --json
    """
    from benchmarks.printing import show
    from benchmarks.privacy import bench_privacy as measure

    show(measure(quick=quick), as_json=as_json, save=save)


@app.command("large")
def bench_large(
    as_json: AsJson = False,
    quick: Quick = False,
    save: Save = False,
    model_gb: Annotated[str, typer.Option(help="Sizes of models in GB, with commas.")] = ".1,1",
) -> None:
    """Seconds of a round beside a plain TLS stream, and memory of server and clients, with large models.

    Example: python -m benchmarks large --model-gb .1,1 --json
    """
    from benchmarks.large import QUICK_GB, sizes_of
    from benchmarks.large import bench_large as measure
    from benchmarks.printing import show

    show(measure(QUICK_GB if quick else sizes_of(model_gb)), as_json=as_json, save=save)


@app.command("preempt")
def bench_preempt(
    as_json: AsJson = False,
    departures: Annotated[int, typer.Option(help="Clients to end by each signal.", min=1)] = 20,
    quick: Quick = False,
    save: Save = False,
) -> None:
    """What a run keeps of clients that are ended by SIGTERM at random moments, beside SIGKILL.

    Example: python -m benchmarks preempt --departures 100 --json
    """
    from benchmarks.preempt import QUICK_DEPARTURES
    from benchmarks.preempt import bench_preempt as measure
    from benchmarks.printing import show

    show(measure(QUICK_DEPARTURES if quick else departures), as_json=as_json, save=save)


@app.command("kills")
def bench_kills(
    as_json: AsJson = False,
    quick: Quick = False,
    save: Save = False,
    torchft_python: Annotated[Path, typer.Option(help="An interpreter with torchft and torch.")] = PYTHON,
) -> None:
    """What a killed client costs, beside torchft's LocalSGD and Flower's FedAvg.

    Example: python -m benchmarks kills --torchft-python torchft/bin/python --json
    """
    from benchmarks.kills import QUICK, USUAL, text_lines
    from benchmarks.kills import bench_kills as measure
    from benchmarks.printing import show

    report = measure(QUICK if quick else USUAL, str(torchft_python))
    show(report, as_json=as_json, save=save, lines=text_lines(report))


@app.command("simulation")
def bench_simulation(
    as_json: AsJson = False,
    quick: Quick = False,
    save: Save = False,
    flower_python: Annotated[Path, typer.Option(help="An interpreter with flwr and ray.")] = PYTHON,
    pfl_python: Annotated[Path, typer.Option(help="An interpreter with pfl and torch.")] = PYTHON,
    device: Annotated[
        str, typer.Option(help="Another device, such as cuda: fedgc alone, one by one and as a stack.")
    ] = "cpu",
) -> None:
    """Clients a second of simulated training, beside Flower's engine and pfl-research; and its memory.

    Example: python -m benchmarks simulation --pfl-python pfl/bin/python --json
    """
    from benchmarks.printing import show
    from benchmarks.simulation import QUICK, USUAL, bench_stack, text_lines
    from benchmarks.simulation import bench_simulation as measure

    size, pythons = QUICK if quick else USUAL, {"flower": str(flower_python), "pfl": str(pfl_python)}
    report = measure(size, pythons) if device == "cpu" else bench_stack(size, device)
    show(report, as_json=as_json, save=save, lines=text_lines(report))


@app.command("fleet")
def bench_fleet(
    as_json: AsJson = False,
    clients: Annotated[str, typer.Option(help="Numbers of clients, with commas.")] = "10,100,1000,3000",
    quick: Quick = False,
    save: Save = False,
) -> None:
    """What one server spends on each of many clients, what a stop of 15 seconds costs, and a tree of servers.

    Example: python -m benchmarks fleet --clients 100,1000 --json
    """
    from dataclasses import replace

    from benchmarks.fleet import QUICK, USUAL, fleets_of
    from benchmarks.fleet import bench_fleet as measure
    from benchmarks.printing import show

    show(measure(QUICK if quick else replace(USUAL, clients=fleets_of(clients))), as_json=as_json, save=save)


@app.command("receivers")
def bench_receivers(as_json: AsJson = False, quick: Quick = False, save: Save = False) -> None:
    """What several processes that receive gain one server, and what they cost.

    Example: python -m benchmarks receivers --json
    """
    from benchmarks.printing import show
    from benchmarks.receivers import QUICK, USUAL
    from benchmarks.receivers import bench_receivers as measure

    show(measure(QUICK if quick else USUAL), as_json=as_json, save=save)


@app.command("soak")
def bench_soak(
    as_json: AsJson = False,
    minutes: Annotated[float, typer.Option(help="How long faults come, in all.", min=1.0)] = 10.0,
    seed: Annotated[int, typer.Option(help="Of the faults.", min=0)] = 0,
    folder: Annotated[
        Path | None, typer.Option(help="A new folder that keeps stores, checkpoints and logs.")
    ] = None,
    save: Save = False,
) -> None:
    """A real federation under random faults for minutes, every sum recomputed; memory and open files.

    Example: python -m benchmarks soak --minutes 10 --json
    """
    from benchmarks.printing import show
    from benchmarks.soak import bench_soak as measure

    show(measure(minutes, seed, folder), as_json=as_json, save=save)


@app.command("placement")
def bench_placement(
    as_json: AsJson = False,
    save: Save = False,
    gb: Made = 0.5,
) -> None:
    """Time until the chunks of a site are at the clients that hold them, over the rate of the line.

    Example: python -m benchmarks placement --json
    """
    from benchmarks.chunk_placement import bench_placement as measure
    from benchmarks.printing import show

    show(measure(gb), as_json=as_json, save=save)


@app.command("prediction")
def bench_prediction(as_json: AsJson = False, quick: Quick = False, save: Save = False) -> None:
    """Error of the second half of real runs, predicted from their first: uneven, dying, stopped, slow, gated.

    Example: python -m benchmarks prediction --json
    """
    from benchmarks.prediction import bench_prediction as measure
    from benchmarks.printing import show

    show(measure(quick=quick), as_json=as_json, save=save)


@app.command("convert-trace")
def convert_trace(
    trace: Annotated[
        Path, typer.Argument(help="Times of another project: *.parquet (GPU jobs) or *.pkl (AWS Lambda).")
    ],
    table: Annotated[Path, typer.Argument(help="The CSV file to write.")],
) -> None:
    """Convert a trace of another project to the CSV table that `fedgc sim` and `fedgc plan` read.

    Example: python -m benchmarks convert-trace trace-ST.parquet ST.csv
    """
    from benchmarks.traces import convert

    convert(trace, table)


if __name__ == "__main__":
    run_program(lambda: app)
