"""Random buttons from a seed, without a page: what the run lost, beside a calm run of as many rounds."""

import json
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice
from pathlib import Path

from benchmarks.saved import FOLDER
from benchmarks.served import Served, eventually
from examples.federation import Result, say
from examples.plugs.fleet import AGAIN, CUT, FILL, KILL, LEAVE, RESTART, STOP, Fleet, Steps, eventually_over
from examples.plugs.scene import NAMES, Scene, started
from fedgc.errors import EdgeFailed

APART_S = (1.0, 4.0)  # from a completed round after one fault to the next
LASTS_S = (1.0, 12.0)  # a fault that ends by the same button: shorter and longer than links.grace-s
OF_CLIENT = (KILL, LEAVE, STOP, CUT)
OF_SERVER = (("server", KILL), ("superlink", RESTART), ("server", FILL))
TAKE = (KILL, STOP, CUT)  # faults that may take the unfinished steps of their client
MANY = 1_000_000  # rounds: more than there will be
CALM_S = 900.0
KILLS = "kills"  # the benchmark that kills the processes of other frameworks, too


@dataclass(frozen=True)
class Planned:
    """A button: how long after the last one it is pressed, and pressed again if it has to be."""

    name: str
    button: str
    after_s: float
    lasts_s: float


@dataclass(frozen=True)
class Pressed:
    """A button that was pressed, and its consequences."""

    name: str
    button: str
    at: float  # seconds since 1970
    unfinished_steps: int  # that its client had not yet exchanged
    recovery_s: float = 0.0  # until the next completed round

    def __str__(self) -> str:
        steps = f"{self.unfinished_steps} unfinished steps, " if self.name in NAMES else ""
        return f"{self.name}: {self.button}, {steps}next round after {self.recovery_s:.1f} s"


def planned(seed: int) -> Iterator[Planned]:
    """Yield buttons without end: in turn each of a client once, and one of the server, in random order.

    >>> [f"{each.name}: {each.button}" for each in islice(planned(3), 3)]
    ['server: kill', 'site-1: kill', 'site-2: stop']
    """
    chance = random.Random(seed)  # noqa: S311  moments, not secrets
    for server in cycle(OF_SERVER):
        of_clients = [(chance.choice(NAMES), button) for button in OF_CLIENT]
        for name, button in chance.sample([*of_clients, server], len(OF_CLIENT) + 1):
            yield Planned(name, button, chance.uniform(*APART_S), chance.uniform(*LASTS_S))


def pressed(folder: Path, count: int, seed: int) -> Result:
    """Press so many buttons, then train as many rounds without."""
    with started(folder / "random", "random", MANY) as scene:
        fleet, served = Fleet(scene), scene.served
        steps, made, lost = Steps(served), list[Pressed](), 0
        try:
            eventually(lambda: served.last() >= 1 or served.process.poll() is not None)
            for each in _faults(fleet, steps, count, seed):
                made.append(each)
            served.goes_on(2)
        except EdgeFailed as error:
            lost = 1
            say(f"the run is lost: {error}")
        finally:
            fleet.close()
    rounds = served.last()
    if not rounds:
        raise EdgeFailed(f"saw no completed round, so there is nothing to compare; {served.said()[-400:]}")
    say(f"the same {rounds} rounds without faults")
    with started(folder / "calm", "calm", rounds) as calm:
        _completed(calm)
    reached, calmly = accuracy(served), accuracy(calm.served)
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
        **{f"benchmark_{name}_costs_steps": each for name, each in kill_costs().items()},
    }
    for line in costs():
        say(line)
    return Result(figures, [asdict(each) for each in made])


def _completed(calm: Scene) -> None:
    if not eventually_over(calm.served, CALM_S) or calm.served.process.returncode:
        raise EdgeFailed(f"the calm run did not complete; it said: {calm.served.said()[-400:]}")


def _faults(fleet: Fleet, steps: Steps, count: int, seed: int) -> Iterator[Pressed]:
    """Make faults, each after a completed round."""
    for number, each in enumerate(islice(planned(seed), count), start=1):
        time.sleep(each.after_s)
        happened = _made(fleet, steps, each)
        fleet.served.goes_on(1)
        recovered = replace(happened, recovery_s=time.time() - happened.at)
        say(f"{number}: {recovered}")
        yield recovered


def _made(fleet: Fleet, steps: Steps, each: Planned) -> Pressed:
    def at_stake() -> int:
        if each.name not in NAMES:
            return 0
        if each.button in TAKE:
            steps.note(each.name)
        return steps.uncounted()[each.name]

    before, at = at_stake(), time.time()
    fleet.fault(each.name, each.button)
    after = at_stake()  # with the steps that the client did until then
    if each.button in AGAIN:
        time.sleep(each.lasts_s)
        at_stake()
        fleet.fault(each.name, each.button)
    return Pressed(each.name, each.button, at, max(before, after))


def accuracy(served: Served) -> float:
    """Return the last accuracy of the common model."""
    found = [each.row.metrics["accuracy"] for each in served.history() if "accuracy" in each.row.metrics]
    if not found:
        raise EdgeFailed(f"run {served.name}: saw no accuracy of the common model, needed one")
    return found[-1]


# ---- other frameworks


def kill_costs(folder: Path = FOLDER) -> Mapping[str, float]:
    """Return what a kill costs, in steps, by framework and signal: as measured by `benchmarks kills`."""
    found = json.loads((folder / f"{KILLS}.json").read_text())["figures"]["kill_costs_steps"]
    return {name.replace(" ", "_"): each for name, each in found.items()}


def costs() -> Iterator[str]:
    """Yield the costs as lines."""
    yield f"the same kills under other frameworks, as measured by `python -m benchmarks {KILLS}`:"
    for name, each in kill_costs().items():
        yield f"  {name.replace('_', ' ')}: {each:.0f} steps"
