"""Random buttons from a seed, without a page: what the run lost, beside a calm run of as many rounds."""

import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path

from benchmarks.served import Served, eventually
from benchmarks.soak_faults import Happened, Kind, make, schedule
from examples.federation import Result, say
from examples.plugs.fleet import NAMES, Steps, eventually_over, started
from fedgc.errors import EdgeFailed

APART_S = (1.0, 4.0)  # from a completed round after one fault to the next
TAKE = (Kind.KILL, Kind.STOP)  # faults that may take the unfinished steps of their client
MANY = 1_000_000  # rounds: more than there will be
CALM_S = 900.0


def pressed(folder: Path, count: int, seed: int) -> Result:
    """Press so many buttons, then train as many rounds without."""
    (folder / "random").mkdir(parents=True)
    served = started(folder / "random", "random", MANY)
    steps, made, lost = Steps(served), [], 0
    try:
        eventually(lambda: served.last() >= 1 or served.process.poll() is not None)
        made += _faults(served, steps, count, seed)
        served.goes_on(2)
    except EdgeFailed as error:
        lost = 1
        say(f"the run is lost: {error}")
    finally:
        served.end()
    rounds = served.last()
    if not rounds:
        raise EdgeFailed(f"saw no completed round, so there is nothing to compare; {served.said()[-400:]}")
    say(f"the same {rounds} rounds without faults")
    (folder / "calm").mkdir()
    calm = started(folder / "calm", "calm", rounds)
    try:
        if not eventually_over(calm, CALM_S) or calm.process.returncode:
            raise EdgeFailed(f"the calm run did not complete; it said: {calm.said()[-400:]}")
    finally:
        calm.end()
    reached, calmly = accuracy(served), accuracy(calm)
    done, beyond = sum(steps.done().values()), steps.lost_beyond()
    figures = {
        "presses": len(made),
        "runs_lost": lost,
        "rounds": rounds,
        "steps_done": done,
        "steps_counted": sum(steps.counted().values()),
        "steps_lost_beyond_unfinished": beyond,
        "percent_lost_beyond_unfinished": 100.0 * beyond / done,
        "accuracy": reached,
        "accuracy_calm": calmly,
        "accuracy_gap_points": 100.0 * (calmly - reached),
        "longest_recovery_s": max((each.recovery_s for each in made), default=None),
    }
    return Result(figures, [{**asdict(each), "kind": each.kind.value} for each in made])


def _faults(served: Served, steps: Steps, count: int, seed: int) -> Iterator[Happened]:
    """Make faults, each after a completed round."""
    for number, fault in enumerate(islice(schedule(seed, NAMES, APART_S), count), start=1):
        time.sleep(fault.after_s)
        if fault.kind in TAKE:
            steps.note(fault.client)
        happened = make(fault, served)
        if fault.kind in TAKE:
            steps.note(fault.client)  # with the steps that it did until the signal came
        served.goes_on(1)
        recovered = replace(happened, recovery_s=time.time() - happened.at)
        say(f"{number}: {fault.kind.value} {happened.client}, next round after {recovered.recovery_s:.1f} s")
        yield recovered


def accuracy(served: Served) -> float:
    """Return the last accuracy of the common model."""
    found = [each.row.metrics["accuracy"] for each in served.history() if "accuracy" in each.row.metrics]
    if not found:
        raise EdgeFailed(f"run {served.name}: saw no accuracy of the common model, needed one")
    return found[-1]
