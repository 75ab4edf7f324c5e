"""Robust speeds of clients, from the last rounds of each.

One slow round (another process on the machine, a laptop that slept) must not make a client slow, so the time
of a step is the median over the ring. Its spread adds two variances: between rounds by the median absolute
deviation, and within a round the median of the spreads reported there. A round counts as failed if the client
reported a failure or an implausible value.

A client without any plausible value is taken to be as slow as the slowest known client: implausible claims
never win it more work. A client without a row in the ring is known by its summaries, if rows of it were
folded.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from sqlalchemy import Connection, func, select

from fedgc.history import WINDOW, Speed, Speeds, median_and_spread
from fedgc.store import reading, tables
from fedgc.store.plausible import FASTEST_LINK
from fedgc.store.tables import ClientRound, Recent, Run, Summary, Task, Track
from fedgc.store.views import Client, MeasuredSpeeds


class Sample(NamedTuple):
    """What one round shows of the speed of a client."""

    round_id: int
    step_s: float | None
    spread_s: float | None
    upload_s: float
    download_s: float
    up_bytes: int
    down_bytes: int
    failed: bool
    struck: bool


def speeds(connection: Connection, task: str | None) -> Speeds:
    """Return what is known for a task (None: the task of the newest run)."""
    task_id = _task(connection, task)
    known = _known(connection, task_id)
    named = connection.execute(select(tables.Client.id, tables.Client.key))
    keys = dict(named.all())
    found = {client: speed for client, (speed, _) in known.items() if speed is not None}
    return Speeds(
        {keys[client]: replace(speed, client=keys[client]) for client, speed in found.items()},
        reading.recent_rounds(connection, task_id, WINDOW),
    )


def paces(connection: Connection, task: str | None) -> tuple[MeasuredSpeeds, ...]:
    """Return every client that ever worked on a task (None: the task of the newest run)."""
    task_id = _task(connection, task)
    known = _known(connection, task_id)
    named = select(tables.Client, Track).join(Track, Track.client_id == tables.Client.id)
    found = []
    for line in connection.execute(named.where(Track.task_id == task_id).order_by(tables.Client.id)):
        speed, trend = known.get(line.id, (None, ()))
        found.append(
            MeasuredSpeeds(
                Client(line.key, line.name, line.site, line.link, line.first_seen, line.last_seen),
                speed and replace(speed, client=line.key),
                trend,
                *(line.rows, line.finished, line.counted, line.failures, line.implausible),
            )
        )
    return tuple(found)


def speed_of(samples: Sequence[Sample]) -> Speed | None:
    """Return the speed from samples, oldest first; None if none of them has a time.

    >>> quick = Sample(1, 0.1, 0.0, 2.0, 0.0, 1000, 0, False, False)
    >>> speed = speed_of([quick, quick._replace(step_s=50.0, failed=True), quick, quick])
    >>> speed.step_s, speed.spread_s, speed.failures, speed.up_bytes_s, speed.down_bytes_s, speed.rounds
    (0.1, 0.0, 0.25, 500.0, None, 4)
    """
    steps = [sample.step_s for sample in samples if sample.step_s is not None]
    if not steps:
        return None
    middle, between = median_and_spread(steps)
    within = [sample.spread_s for sample in samples if sample.spread_s is not None]
    return Speed(
        client="",
        step_s=middle,
        spread_s=math.hypot(between, median(within) if within else 0.0),
        failures=sum(sample.failed for sample in samples) / len(samples),
        up_bytes_s=_rate([(sample.up_bytes, sample.upload_s) for sample in samples]),
        down_bytes_s=_rate([(sample.down_bytes, sample.download_s) for sample in samples]),
        rounds=len(steps),
    )


def _rate(transfers: Sequence[tuple[int, float]]) -> float | None:
    rates = [size / seconds for size, seconds in transfers if size > 0 and seconds > 0]
    credible = [rate for rate in rates if rate <= FASTEST_LINK]
    return median(credible) if credible else None


def _task(connection: Connection, task: str | None) -> int | None:
    if task is not None:
        return connection.scalar(select(Task.id).where(Task.name == task))
    return connection.scalar(select(Run.task_id).order_by(Run.id.desc()).limit(1))


def _known(connection: Connection, task_id: int | None) -> dict[int, tuple[Speed | None, tuple[float, ...]]]:
    """Return the speed and trend of each client with rows or summaries."""
    samples = _samples(connection, task_id)
    found: dict[int, tuple[Speed | None, tuple[float, ...]]] = {
        client: (speed_of(seen), tuple(each.step_s for each in seen if each.step_s is not None))
        for client, seen in samples.items()
    }
    for client, folded in _folded(connection, task_id).items():
        if found.get(client, (None, ()))[0] is None:
            found[client] = folded, ()
    times = [speed.step_s for speed, _ in found.values() if speed is not None]
    for client, seen in samples.items():
        if times and found[client][0] is None and any(each.struck for each in seen):
            failures = sum(each.failed for each in seen) / len(seen)
            found[client] = Speed("", max(times), failures=failures, rounds=len(seen)), ()
    return found


def _samples(connection: Connection, task_id: int | None) -> Mapping[int, list[Sample]]:
    columns = (
        *(ClientRound.client_id, ClientRound.round_id, ClientRound.step_s, ClientRound.spread_s),
        *(ClientRound.upload_s, ClientRound.download_s, ClientRound.up_bytes, ClientRound.down_bytes),
        *(ClientRound.failure, ClientRound.implausible),
    )
    same = (ClientRound.round_id == Recent.round_id) & (ClientRound.client_id == Recent.client_id)
    lines = connection.execute(select(*columns).join(Recent, same).where(Recent.task_id == task_id))
    samples = defaultdict(list)
    for line in lines.all():
        struck = line[9] > 0
        samples[line[0]].append(Sample._make((*line[1:8], line[8] is not None or struck, struck)))
    for seen in samples.values():
        seen.sort(key=lambda sample: sample.round_id)  # ids of rounds are in the order of writing
    return samples


def _folded(connection: Connection, task_id: int | None) -> Mapping[int, Speed]:
    sums = (func.sum(Summary.timed), func.sum(Summary.step_sum_s), func.sum(Summary.step_squares))
    all_rows = (func.sum(Summary.failures), func.sum(Summary.rows))
    of_task = select(Summary.client_id, *sums, *all_rows).join(Run, Run.id == Summary.run_id)
    lines = connection.execute(of_task.where(Run.task_id == task_id).group_by(Summary.client_id))
    found = {}
    for client, timed, total_s, squares, failures, rows in lines:
        if timed:
            mean = total_s / timed
            spread = math.sqrt(max(squares / timed - mean * mean, 0.0))
            found[client] = Speed("", mean, spread, failures / rows, rounds=int(timed))
    return found
