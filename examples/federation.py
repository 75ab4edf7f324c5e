"""What all examples share: a federation in a folder of its own, runs in it, and one form of result.

    python -m examples.spot                   what happened, and the figures
    python -m examples.spot --json            one JSON object: figures, rows, machine
    python -m examples.spot --folder spot     keeps the store, so that `fedgc report` can read it

An example fails, with exit code 1, if a figure is outside the band that it states.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from fedgc.deploy.app_folder import Setting
from fedgc.deploy.local_federation import LocalFederation, Node
from fedgc.errors import EdgeFailed, FedgcError
from fedgc.history import ClientRow
from fedgc.messages import SUMMED
from fedgc.processes.available import machine
from fedgc.store.database import Store
from fedgc.store.views import Round

ROOT = Path(__file__).parents[1]
RUN_S = 900.0  # a run of an example takes less than a minute on a quiet machine
LAST_ROUND = 1_000_000_000
Figure = float | int | str | None
Bands = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Result:
    """The figures of an example, and the rows from which they are computed."""

    figures: Mapping[str, Figure]
    rows: Sequence[Mapping[str, Figure]] = field(default=())


class Federation(LocalFederation):
    """A federation of this machine whose store and files are all in one folder."""

    def __init__(self, folder: Path, nodes: int | Sequence[Node], **variables: str) -> None:
        self.database = folder / "fedgc.db"
        self.state = folder / "state"
        environment = {
            "FEDGC_DB": str(self.database),
            "XDG_STATE_HOME": str(self.state),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", "")))),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            **variables,
        }
        super().__init__(nodes, folder=folder / "processes", environment=environment)

    @contextmanager
    def store(self) -> Iterator[Store]:
        """Open the store for reading."""
        with Store.open(str(self.database), reads_only=True) as store:
            yield store

    def begin(self, name: str, settings: Mapping[str, Setting]) -> int:
        """Submit a run of this name; return Flower's id of it."""
        common: dict[str, Setting] = {"min-clients": len(self.nodes), "timing.start-timeout-s": 300.0}
        return self.submit({**common, "client.threads": 1, "run": name, **settings})

    def complete(self, name: str, settings: Mapping[str, Setting]) -> None:
        """Run to the end."""
        self.finish(self.begin(name, settings))

    def finish(self, run: int) -> None:
        """Wait for the end of a run; raise EdgeFailed with the end of its log if it did not complete."""
        if (status := self.wait(run, RUN_S)) != "finished:completed":
            words = self.log(f"run-{run}").read_text(errors="replace").strip().splitlines()[-3:]
            raise EdgeFailed(f"the run ended as {status}: {' | '.join(words)}")

    def rounds(self, name: str) -> tuple[Round, ...]:
        """Return the rounds of a run so far; empty if it has not begun."""
        try:
            with self.store() as store:
                return store.rounds(name)
        except FedgcError:
            return ()

    def exchanges(self, name: str) -> int:
        """Return how many rounds of a run were exchanged."""
        return sum(each.row.outcome in SUMMED for each in self.rounds(name))

    def until_exchange(self, name: str, more: int = 1) -> None:
        """Wait until the run has had so many more exchanges."""
        before = self.exchanges(name)
        eventually(lambda: self.exchanges(name) >= before + more)

    def client_rows(self, name: str) -> dict[str, list[tuple[int, ClientRow]]]:
        """Return (round, row) of each client of a run, by its name."""
        with self.store() as store:
            return {**{each: [] for each in self.nodes}, **rows_by_name(store, name)}

    def last(self, name: str, figure: str) -> float:
        """Return the last value of a figure of the common model."""
        if not (found := self.measured(name, figure)):
            raise EdgeFailed(f"run {name}: saw no {figure} of the common model, needed one")
        return found[-1]

    def measured(self, name: str, figure: str) -> list[float]:
        """Return a figure of the common model after each round that has it."""
        rows = [each.row for each in self.rounds(name)]
        return [row.metrics[figure] for row in rows if figure in row.metrics]


def rows_by_name(store: Store, run: str) -> dict[str, list[tuple[int, ClientRow]]]:
    """Return (round, row) of each client that worked in a run, by its name."""
    found: dict[str, list[tuple[int, ClientRow]]] = {}
    names = {each.client: each.name for each in store.clients()}
    for number, row in store.client_rounds(run, 0, LAST_ROUND):
        found.setdefault(names.get(row.client) or row.client, []).append((number, row))
    return found


def eventually(condition: Callable[[], object], within_s: float = RUN_S) -> None:
    """Wait until the condition holds."""
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            raise EdgeFailed(f"waited {within_s:g} s for what did not happen")
        time.sleep(0.2)


def say(text: str) -> None:
    """Print a line about what happens, on standard error, so that --json prints its object alone."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def outside(figures: Mapping[str, Figure], bands: Bands) -> list[str]:
    """Return what is wrong with the figures: those that are missing or outside their bands."""
    found = []
    for name, (least, most) in bands.items():
        value = figures.get(name)
        if not isinstance(value, int | float) or not least <= value <= most:
            found.append(f"{name}: saw {value}, needed {least:g} to {most:g}")
    return found


def words_of(figures: Mapping[str, object]) -> str:
    """Return figures in one line; of figures by name, each."""
    words = []
    for name, value in figures.items():
        if isinstance(value, Mapping):
            words += [words_of({f"{name} {each}": number}) for each, number in value.items()]
        else:
            words.append(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}")
    return ", ".join(words)


def main(example: Callable[[Path], Result], bands: Bands, about: str) -> None:
    """Run an example by the options of the command line."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--folder", type=Path, help="a new folder for the store and all other files")
    given = parser.parse_args()
    where = (
        nullcontext(str(given.folder.absolute()))
        if given.folder
        else tempfile.TemporaryDirectory(prefix="fedgc-")
    )
    try:
        with where as folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            result = example(Path(folder))
    except FedgcError as error:
        sys.exit(f"{about}: {error}")
    finished_example(result, bands, about, as_json=given.json)
    if given.folder and not given.json:
        print(f"FEDGC_DB={given.folder / 'fedgc.db'} fedgc report latest --html report.html")


def finished_example(result: Result, bands: Bands, about: str, *, as_json: bool) -> None:
    """Print the result; exit with code 1 and one line if a figure is outside its band."""
    if as_json:
        print(json.dumps({"figures": result.figures, "rows": list(result.rows), "machine": machine()}))
    else:
        print(words_of(result.figures))
    if wrong := outside(result.figures, bands):
        sys.exit(f"{about}: {'; '.join(wrong)}")
