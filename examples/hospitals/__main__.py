"""`python -m examples.hospitals`: the comparison. `--json` prints one object, as the benchmarks do."""

import sys
from typing import Annotated

import typer

from benchmarks.printing import show
from benchmarks.saved import wholly
from fedgc.cli import run_program

app = typer.Typer(help="Eight hospitals, of which the slowest holds half of the data.")


@app.command()
def hospitals(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Three arms, two rates, one seed.")] = False,
    save: Annotated[
        bool, typer.Option("--save", help="Write benchmarks/results/hospitals.json.", callback=wholly)
    ] = False,
) -> None:
    """Train the model in every way, and print what each needed to reach the target."""
    from examples.hospitals.arms import DROPS, OURS, WAITS, named
    from examples.hospitals.comparison import Care, compare, text_lines

    care = Care(2, 1, named(WAITS, DROPS, OURS)) if quick else Care()
    report = compare(care, lambda done, total: sys.stderr.write(f"\r{done} of {total} runs"))
    sys.stderr.write("\n")
    show(report, as_json=as_json, save=save, lines=text_lines(report), module="examples.hospitals")


if __name__ == "__main__":
    run_program(lambda: app)
