"""Cells of `python -m benchmarks rounds`: rows combined over seeds, the best of each kind, losses."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np

from benchmarks.report import Figure, Report, Value

UPLOADS: Final = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)


@dataclass(frozen=True, slots=True)
class Row:
    """One policy under one scenario and seed; times of rounds after practice.

    `upload`: the time of a whole update over that of a unit of work; None if the times exclude uploads.
    """

    scenario: str
    seed: int
    policy: str
    family: str  # ours, planned, baseline, bound
    exact: bool
    blocks: int  # if rounds choose, the smallest chosen
    upload: float | None
    upload_size: float  # of one codeword, in whole float32 updates
    coarse: bool  # its numbers give a larger error of the sum than 8 bits
    unit_s: float
    median_s: float
    p95_s: float
    spread_s: float
    sent: float
    computed: float
    discarded: float
    undecodable: float  # share of rounds that never end, or are incomplete
    uploads_s: tuple[float, ...] = ()  # the median at each of UPLOADS, if the upload time does not simply add


@dataclass(frozen=True, slots=True)
class Cell:
    """One scenario and upload ratio: the best policy of each kind.

    `short`: among policies as exact as 8 bits, float32 included; `coarse`: among those with shorter numbers.
    """

    scenario: str
    upload: float
    even_links: bool
    ours: str
    ours_s: float
    baseline: str
    baseline_s: float
    ours_short: str
    ours_short_s: float
    baseline_short: str
    baseline_short_s: float
    coarse: str
    coarse_s: float
    queue_s: float  # the best work queue that sends float32
    coded_s: float  # blocks >= 2, of any policy; float32
    plain_s: float  # blocks 1
    coded_short_s: float
    plain_short_s: float
    bound_s: float
    chosen_s: float  # fedgc with the tuner's plan

    @property
    def loss(self) -> float:
        """Return the time of fedgc over that of the best baseline with numbers as exact."""
        return max(_ratio(self.ours_s, self.baseline_s), _ratio(self.ours_short_s, self.baseline_short_s))

    @property
    def lost(self) -> str:
        """Return the kind of baseline that is faster: as exact, coarser, or none."""
        if self.loss > 1.0:
            return "LOST"
        return "lost to 4 bits" if self.coarse_s < self.ours_short_s else ""

    @property
    def name(self) -> str:
        """Return the scenario and the upload."""
        return f"{self.scenario}, upload {self.upload:.3g}"


def compare(rows: Sequence[Row]) -> list[Cell]:
    """Return every cell, of medians over seeds."""
    by_scenario: defaultdict[str, defaultdict[tuple[str, int], list[Row]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in rows:
        by_scenario[row.scenario][row.policy, row.blocks].append(row)
    return [
        _cell(scenario, upload, [_Median.of(each, upload) for each in policies.values()])
        for scenario, policies in by_scenario.items()
        for upload in _uploads(next(iter(policies.values())))
    ]


def _uploads(rows: Sequence[Row]) -> Sequence[float]:
    """Return the uploads of these rows; a scenario with its own links has one of its own."""
    own = [row.upload for row in rows if row.upload is not None]
    return (float(np.median(own)),) if own else UPLOADS


@dataclass(frozen=True, slots=True)
class _Median:
    """One policy in one cell, over all seeds."""

    row: Row
    seconds: float

    @classmethod
    def of(cls, rows: Sequence[Row], upload: float) -> "_Median":
        return cls(rows[0], float(np.median([_seconds(row, upload) for row in rows])))


def _seconds(row: Row, upload: float) -> float:
    """Return the median round of this row if an upload takes `upload` units of work."""
    if row.upload is not None:
        return row.median_s
    if row.uploads_s:
        return row.uploads_s[UPLOADS.index(upload)]
    return row.median_s + upload * row.unit_s * row.upload_size


def _cell(scenario: str, upload: float, medians: Sequence[_Median]) -> Cell:
    exact = [each for each in medians if each.row.exact and each.row.family in ("ours", "baseline")]
    single = [each for each in exact if math.isclose(each.row.upload_size * each.row.blocks, 1.0)]
    short = [each for each in exact if not each.row.coarse]
    coarse = _best(each for each in exact if each.row.coarse)
    mine, baseline = (
        _best(each for each in single if each.row.family == kind) for kind in ("ours", "baseline")
    )
    mine_short, baseline_short = (
        _best(each for each in short if each.row.family == kind) for kind in ("ours", "baseline")
    )
    coded_s, plain_s = _by_blocks(single)
    coded_short_s, plain_short_s = _by_blocks(short)
    return Cell(
        scenario,
        upload,
        mine.row.upload is None,
        mine.row.policy,
        mine.seconds,
        baseline.row.policy,
        baseline.seconds,
        mine_short.row.policy,
        mine_short.seconds,
        baseline_short.row.policy,
        baseline_short.seconds,
        coarse.row.policy,
        coarse.seconds,
        min(each.seconds for each in single if each.row.policy.startswith("work queue")),
        coded_s,
        plain_s,
        coded_short_s,
        plain_short_s,
        _best(each for each in medians if each.row.family == "bound").seconds,
        _best(each for each in medians if each.row.family == "planned").seconds,
    )


def _best(medians: Iterable[_Median]) -> _Median:
    return min(medians, key=lambda each: each.seconds)


def _by_blocks(medians: Sequence[_Median]) -> tuple[float, float]:
    """Return the least time with blocks >= 2, and with blocks 1."""
    coded_s = min((each.seconds for each in medians if each.row.blocks > 1), default=math.inf)
    return coded_s, min(each.seconds for each in medians if each.row.blocks == 1)


def lost_first(cells: Sequence[Cell]) -> list[Mapping[str, Value]]:
    """Return the cells as rows, those where fedgc loses first, the worst of them first."""
    by_loss = sorted(cells, key=lambda cell: (cell.loss <= 1.0, not cell.lost, -cell.loss))
    return [
        {
            **asdict(cell),
            "lost": cell.lost,
            "loss": cell.loss,
            "ours_over_bound": cell.ours_s / cell.bound_s,
            "chosen_over_bound": cell.chosen_s / cell.bound_s,
            "chosen_over_best": cell.chosen_s / cell.ours_s,
        }
        for cell in by_loss
    ]


TIMES: Final = (
    *("ours_s", "baseline_s", "ours_short_s", "baseline_short_s", "coarse_s", "bound_s"),
    "chosen_s",
)


def text_lines(report: Report) -> Iterator[str]:
    """Yield lines of text: the loss with uneven uplinks, the effect of the code, every cell, losses first."""
    yield from _uneven_lines(report)
    every, same, single = (
        report.figures[f"code_wins_share{which}"] for which in ("", "_same_error", "_float32")
    )
    yield (
        f"blocks >= 2 is strictly best in {every:.1%} of the cells, in {same:.1%} where numbers may be as "
        f"short as 8 bits, in {single:.1%} where only float32 is sent"
    )
    named = ("ours", "baseline", "short:", "baseline", "4 bits", "bound", "planned")
    columns = " ".join(f"{name:>8}" for name in named)
    yield f"{'scenario':20} {'upload':>6} {columns}  {'':14}  best: ours | baseline | short: ours | baseline"
    for row in report.rows:
        if "loss" in row:
            times = " ".join(f"{row[name]:8.2f}" for name in TIMES)
            names = f"{row['ours']} | {row['baseline']} | {row['ours_short']} | {row['baseline_short']}"
            yield f"{row['scenario']:20} {row['upload']:6.3g} {times}  {row['lost']:14}  {names}"


def _uneven_lines(report: Report) -> Iterator[str]:
    """Yield a line for each scenario with uneven uplinks in which another policy is faster."""
    uneven = (row for row in report.rows if row.get("even_links") is False)
    for row in sorted(uneven, key=lambda row: -_seconds_of(row, "ours_s") / _seconds_of(row, "baseline_s")):
        over, planned_over = (
            _seconds_of(row, name) / _seconds_of(row, "baseline_s") for name in ("ours_s", "chosen_s")
        )
        if max(over, planned_over) > 1.0:
            yield (
                f"LOST with uneven uplinks: {row['scenario']}: {row['baseline']} is the best; fedgc takes "
                f"{over:.2f} times as long at its best, {planned_over:.2f} times as planned"
            )


def _seconds_of(row: Mapping[str, Value], name: str) -> float:
    seconds = row[name]
    return float(seconds) if isinstance(seconds, int | float) else math.nan


# ---- figures

REACH: Final = {  # the largest value that is wanted
    "worst_over_best_uneven_links": 1.05,
    "worst_over_best_even_links": 1.05,
    "over_fluid_worst": 1.2,
    "over_fluid_worst_even_links": 1.2,
    "chosen_over_best": 1.05,
    "chosen_over_work_queue": 1.05,
    "chosen_over_fluid": 1.2,
}


def missed_first(measured: Mapping[str, Figure]) -> dict[str, Figure]:
    """Return the figures, those beyond their reach first.

    >>> list(missed_first({"events": 9.0, "chosen_over_best": 1.1, "over_fluid_worst": 1.1}))
    ['chosen_over_best', 'events', 'over_fluid_worst']
    """

    def missed(name: str) -> bool:
        value = measured[name]
        return name in REACH and isinstance(value, int | float) and value > REACH[name]

    return {name: measured[name] for name in sorted(measured, key=lambda name: not missed(name))}


def figures(cells: Sequence[Cell]) -> dict[str, Figure]:
    """Return the figures computed from cells."""
    even = [cell for cell in cells if cell.even_links]
    uneven = [cell for cell in cells if not cell.even_links]
    over_fluid = {cell.name: cell.ours_s / cell.bound_s for cell in cells}
    same = [cell.coded_short_s < cell.plain_short_s for cell in cells]
    every = [won and cell.coded_short_s < cell.coarse_s for won, cell in zip(same, cells, strict=True)]
    single = [cell.coded_s < cell.plain_s for cell in cells]
    return {
        "code_wins_share": sum(every) / len(cells),
        "code_wins_share_same_error": sum(same) / len(cells),
        "code_wins_share_float32": sum(single) / len(cells),
        "over_work_queue": _over_work_queue(cells),
        "worst_over_best_baseline": max(_ratio(cell.ours_s, cell.baseline_s) for cell in cells),
        "worst_over_best_uneven_links": _worst(uneven, "ours_s", "baseline_s"),
        "worst_over_best_even_links": _worst(even, "ours_s", "baseline_s"),
        "over_fluid": over_fluid,
        "over_fluid_worst": max(over_fluid.values()),
        "over_fluid_worst_even_links": _worst(even, "ours_s", "bound_s"),
        "chosen_over_best": _worst(cells, "chosen_s", "ours_s"),
        "chosen_over_work_queue": _worst(cells, "chosen_s", "queue_s"),
        "chosen_over_fluid": _worst(even, "chosen_s", "bound_s"),
        "worst_over_best_short": max(_ratio(cell.ours_short_s, cell.baseline_short_s) for cell in cells),
        "worst_over_best_quantized": max(
            _ratio(cell.ours_short_s, min(cell.baseline_short_s, cell.coarse_s)) for cell in cells
        ),
    }


def _worst(cells: Sequence[Cell], top: str, bottom: str) -> float | None:
    return max((_ratio(getattr(cell, top), getattr(cell, bottom)) for cell in cells), default=None)


def _over_work_queue(cells: Sequence[Cell]) -> float | None:
    return max((cell.ours_s / cell.queue_s for cell in cells if cell.upload == 0.0), default=None)


def _ratio(top: float, bottom: float) -> float:
    return 1.0 if top == bottom else top / bottom
