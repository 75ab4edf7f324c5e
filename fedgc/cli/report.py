"""`fedgc report`: one page about a run, for people and as JSON."""

import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedgc.cli.options import AsJson, runs_like
from fedgc.errors import Unusable

if TYPE_CHECKING:
    from fedgc.web.report import RunReport


def report(
    run: Annotated[str, typer.Argument(help="The run; latest is the newest.", autocompletion=runs_like)],
    html: Annotated[
        Path | None, typer.Option(help="Write the report to this file as a page of its own.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Report on a run: what was counted, what was lost and why, what each client got, bytes, predictions.

    Example: fedgc report latest --html report.html
    """
    from fedgc.cli.image_files import drawable, keep  # here, since help must not wait for sqlalchemy
    from fedgc.processes.available import machine
    from fedgc.store.database import Store
    from fedgc.web.json_values import printed_json
    from fedgc.web.report import report_of
    from fedgc.web.report_page import report_page

    if html is None and not as_json:
        raise Unusable("fedgc report: saw neither --html FILE nor --json, needed one of them, or both")
    drawable(html)
    now = time.time()
    with Store.open(reads_only=True) as store:
        made = report_of(store, store.run(run), now)
    if html is not None:
        keep(html, report_page(made, now).encode())
    if as_json:
        rows = [asdict(each) for each in made.clients]
        sys.stdout.write(printed_json({"figures": figures(made), "rows": rows, "machine": machine()}) + "\n")
    else:
        sys.stdout.write(f"{html}\n")


def figures(made: "RunReport") -> Mapping[str, object]:
    """Return the figures of a report; the rows are its clients."""
    samples, privacy, predictions = made.samples, made.privacy, made.predictions
    return {
        "run": made.run.run,
        "task": made.run.task,
        "work": made.work,
        "state": made.state,
        "reason": made.reason,
        "rounds": len(made.rounds),
        "rounds_by_outcome": {each.outcome: each.rounds for each in made.outcomes},
        "seconds": made.seconds,
        "unit": made.unit,
        "finished": made.finished,
        "counted": made.counted,
        "lost": made.lost_work,
        "lost_by_reason": [asdict(each) for each in made.lost],
        "samples_counted_share": samples.mean_share if samples else None,
        "samples_counted_least_share": samples.least_share if samples else None,
        "up_bytes": made.total("up_bytes"),
        "down_bytes": made.total("down_bytes"),
        "control_bytes": made.total("control_bytes"),
        "plain_bytes": made.saved.plain if made.saved else None,
        "secrecy": privacy.secrecy,
        "epsilon": privacy.epsilon,
        "epsilon_of_records": privacy.of_records,
        "releases": privacy.releases,
        "plans_compared": predictions.compared,
        "plans_within_band": predictions.within,
        "took_over_predicted": predictions.median_ratio,
        "measures": {each.name: each.last for each in made.figures},
        "best": asdict(made.best) if made.best else None,
    }
