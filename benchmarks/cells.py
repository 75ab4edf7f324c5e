"""Cells of `python -m benchmarks rounds`: rows combined over seeds, the best of each kind, losses."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np

from benchmarks.report import Report, Value

UPLOADS: Final = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)


@dataclass(frozen=True, slots=True)
class Row:
    """One policy under one scenario and seed; times of rounds after practice.

    `upload`: the time of a whole update over that of a unit of work; None if the times exclude uploads.
    """

    scenario: str
    seed: int
    policy: str
    family: str  # ours, baseline, bound
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
    chosen_s: float  # fedgc if each round chooses its blocks; infinite if not played

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
    exact = [each for each in medians if each.row.exact and each.row.family != "bound"]
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
        min((each.seconds for each in single if "blocks chosen" in each.row.policy), default=math.inf),
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
        {**asdict(cell), "lost": cell.lost, "loss": cell.loss, "ours_over_bound": cell.ours_s / cell.bound_s}
        for cell in by_loss
    ]


TIMES: Final = ("ours_s", "baseline_s", "ours_short_s", "baseline_short_s", "coarse_s", "bound_s")


def text_lines(report: Report) -> Iterator[str]:
    """Yield lines of text: the effect of the code, then every cell, losses first."""
    every, same, single = (
        report.figures[f"code_wins_share{which}"] for which in ("", "_same_error", "_float32")
    )
    yield (
        f"blocks >= 2 is strictly best in {every:.1%} of the cells, in {same:.1%} where numbers may be as "
        f"short as 8 bits, in {single:.1%} where only float32 is sent"
    )
    columns = " ".join(f"{name:>8}" for name in ("ours", "baseline", "short:", "baseline", "4 bits", "bound"))
    yield f"{'scenario':20} {'upload':>6} {columns}  {'':14}  best: ours | baseline | short: ours | baseline"
    for row in report.rows:
        if "loss" in row:
            times = " ".join(f"{row[name]:8.2f}" for name in TIMES)
            names = f"{row['ours']} | {row['baseline']} | {row['ours_short']} | {row['baseline_short']}"
            yield f"{row['scenario']:20} {row['upload']:6.3g} {times}  {row['lost']:14}  {names}"


# ---- figures


def figures(cells: Sequence[Cell]) -> dict[str, float | None]:
    """Return the figures computed from cells."""
    same = [cell.coded_short_s < cell.plain_short_s for cell in cells]
    every = [won and cell.coded_short_s < cell.coarse_s for won, cell in zip(same, cells, strict=True)]
    single = [cell.coded_s < cell.plain_s for cell in cells]
    return {
        "code_wins_share": sum(every) / len(cells),
        "code_wins_share_same_error": sum(same) / len(cells),
        "code_wins_share_float32": sum(single) / len(cells),
        "over_work_queue": _over_work_queue(cells),
        "worst_over_best_baseline": max(_ratio(cell.ours_s, cell.baseline_s) for cell in cells),
        "worst_over_best_even_links": max(
            (_ratio(cell.ours_s, cell.baseline_s) for cell in cells if cell.even_links), default=None
        ),
        "chosen_over_best": max(
            (_ratio(cell.chosen_s, cell.ours_s) for cell in cells if cell.chosen_s < math.inf), default=None
        ),
        "worst_over_best_short": max(_ratio(cell.ours_short_s, cell.baseline_short_s) for cell in cells),
        "worst_over_best_quantized": max(
            _ratio(cell.ours_short_s, min(cell.baseline_short_s, cell.coarse_s)) for cell in cells
        ),
    }


def _over_work_queue(cells: Sequence[Cell]) -> float | None:
    return max((cell.ours_s / cell.queue_s for cell in cells if cell.upload == 0.0), default=None)


def _ratio(top: float, bottom: float) -> float:
    return 1.0 if top == bottom else top / bottom
