"""The scenes of the training benchmarks: data and its distribution, model, optimizer, duration, stragglers.

    iid      samples dealt at random
    writers  every client has other writers, if the data names them
    skew     two shards of the samples sorted by label for each client (McMahan et al., arXiv 1602.05629)
    shift, phases, bursts   data that change during the run (`streams`)

Data is a file with x_train (n x pixels, gray values), y_train, writer, x_test, y_test, such as FEMNIST; the
default is the shipped digits, without writers. A client does `BLOCK` steps in a second, a straggler takes
four or eight times as long, and a whole float32 model takes `LINK_S` on its link.

    persistent  one client in eight 8 times slower, one 4 times, the same all the time
    transient   the same, but others in every block
    dead        two clients are 4 times slower, and one of them dies for good after a fifth of the run
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from benchmarks.grid import Source
from benchmarks.images import Images, images
from benchmarks.streams import STREAMS, Stream, stream_of
from fedgc.errors import EdgeFailed
from fedgc.sim.clock import Scenario, working
from fedgc.training.tasks import Task
from fedgc.training.tasks.digits import read as digits
from fedgc.training.tasks.partition import shards
from fedgc.training.tasks.shipped import split
from fedgc.tuner.local_rounds import LocalClients

COLUMNS: Final = ("iid", "writers", "skew")
STRAGGLERS: Final = ("none", "persistent", "transient", "dead")
MODELS: Final = ("mlp", "cnn")
OPTIMIZERS: Final = ("sgd", "adam")
CLIENTS: Final = 8
BLOCK: Final = 16
HISTORY: Final = 9  # blocks of a source before the run, from which `known_of` takes speeds; an odd number,
# so that seeds begin at different rounds of a trace
LINK_S: Final = 0.5
CONTROL_S: Final = 0.01
SHARDS: Final = 2
SLOW: Final = (8.0, 4.0)

Int = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Scene:
    """One scene of the matrix: everything but the arm."""

    column: str
    straggler: str = "none"
    model: str = "mlp"
    optimizer: str = "sgd"
    data: Path | None = None
    source: Source | None = None  # of the paces, if they come from a trace; `straggler` is then its name
    steps: int = 768  # steps of a client without stragglers

    @property
    def changes(self) -> bool:
        """Return whether the data change during the run."""
        return self.column in STREAMS

    @property
    def name(self) -> str:
        """Return the name in tables."""
        return f"{self.column}, {self.straggler}, {self.model}, {self.optimizer}, {self.steps} steps"


@dataclass(frozen=True, slots=True)
class Table:
    """Samples for training and test; `writer` is None if unknown."""

    name: str
    images: Images
    writer: Int | None

    @property
    def labels(self) -> Int:
        """Return the distinct labels of the training samples."""
        return self.images.labels

    @property
    def sample_bytes(self) -> int:
        """Return the bytes to move a sample: a gray value for each pixel, and its label."""
        return int(self.images.inputs[0].size) + 1


@lru_cache(maxsize=2)
def read(data: Path | None) -> Table:
    """Return the data, with gray values standardized by the training samples."""
    raw = _digits() if data is None else _file(data)
    inputs, tests = raw.images.inputs, raw.images.test_inputs
    mean, spread = inputs.mean(), inputs.std()
    alike = replace(raw.images, inputs=(inputs - mean) / spread, test_inputs=(tests - mean) / spread)
    return replace(raw, images=alike)


def _digits() -> Table:
    found = digits()
    gray, labels = found.inputs[:, 0], found.labels
    trained, held_out = split(labels)
    return Table("digits", Images(gray[trained], labels[trained], gray[held_out], labels[held_out]), None)


def _file(data: Path) -> Table:
    needed = ("x_train", "y_train", "writer", "x_test", "y_test")
    try:
        with data.open("rb") as file, np.load(file, allow_pickle=False) as found:
            raw = {name: found[name] for name in needed}
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        saw = str(error.strerror or error) if isinstance(error, OSError) else "something else"
        raise EdgeFailed(f"data {data}: saw {saw}, needed an npz file with {', '.join(needed)}") from error
    side = round(raw["x_train"].shape[1] ** 0.5)

    gray = [(raw[name].reshape(-1, side, side) / 255.0).astype(np.float32) for name in ("x_train", "x_test")]
    labels, test_labels, writer = (raw[name].astype(np.int64) for name in ("y_train", "y_test", "writer"))
    return Table(data.stem, Images(gray[0], labels, gray[1], test_labels), writer)


# ---- distribution of the data


def has(column: str, table: Table) -> bool:
    """Return whether the data supports this distribution."""
    return column != "writers" or table.writer is not None


def homes(column: str, table: Table, rng: np.random.Generator) -> list[Int]:
    """Return the samples of every client."""
    count = len(table.labels)
    if column == "iid":
        return np.array_split(rng.permutation(count), CLIENTS)
    if column == "writers":
        writer = np.zeros(count, np.int64) if table.writer is None else table.writer
        place = dict(zip(rng.permutation(np.unique(writer)).tolist(), range(count), strict=False))
        return np.array_split(np.argsort([place[each] for each in writer.tolist()], kind="stable"), CLIENTS)
    return list(shards(table.labels, CLIENTS, SHARDS, rng))


def task_of(scene: Scene, seed: int, *, pieces: int = 1, shared: float = 0.0) -> Task:
    """Return the task: every client's samples in chunks, and a share `shared` of all on each client.

    The shared samples are in the first chunk of each client. Chunks are numbered client by client, as private
    placement deals them.
    """
    table, rng = read(scene.data), np.random.default_rng([seed, 1])
    stream = stream_for(scene, seed)
    if stream is not None:
        seen = {f"chunk {client:04}": each for client, each in enumerate(stream.rows)}
        named = {_period(number): each for number, each in enumerate(stream.tests)}
        return images(table.images, seen, model=scene.model, optimizer=scene.optimizer, tests=named)
    home = homes(scene.column, table, rng)
    common = np.concatenate([rng.permutation(each)[: round(shared * len(each))] for each in home])
    rows: dict[str, Int] = {}
    for client, mine in enumerate(home):
        others = np.setdiff1d(common, mine)
        for piece, part in enumerate(np.array_split(mine, pieces)):
            name = f"chunk {client * pieces + piece:04}"
            rows[name] = np.concatenate([part, others]) if piece == 0 else part
    return images(table.images, rows, model=scene.model, optimizer=scene.optimizer)


def stream_for(scene: Scene, seed: int) -> Stream | None:
    """Return what clients see when, in a scene whose data change."""
    if scene.column not in STREAMS:
        return None
    table = read(scene.data).images
    rng = np.random.default_rng([seed, 1])
    return stream_of(
        scene.column, table.labels, table.test_labels, clients=CLIENTS, steps=scene.steps, rng=rng
    )


def figure_at(stream: Stream | None, step: int) -> str:
    """Return the name of the accuracy that counts at a step of the run."""
    return "accuracy" if stream is None else _period(stream.period(step))


def _period(number: int) -> str:
    return f"accuracy of period {number}"


def shared_samples(scene: Scene, shared: float) -> int:
    """Return how many samples are sent so that every client has that share of all samples."""
    return round(shared * len(read(scene.data).labels)) * (CLIENTS - 1)


# ---- stragglers


def scenario_of(scene: Scene, rounds: int, round_steps: int, seed: int) -> Scenario:
    """Return the conditions of every round: the mean paces of its blocks, which are alike for any length."""
    blocks, straggler = _blocks(rounds * round_steps), scene.straggler
    rng = np.random.default_rng([seed, 2])
    slow_b = [_paces(rng) for _ in range(blocks)]
    if scene.source is not None:
        slow_b = _recorded(scene, seed)[HISTORY:]
    elif straggler == "none":
        slow_b = [np.ones(CLIENTS)] * blocks
    elif straggler == "dead":
        slow_b = [np.minimum(slow_b[0], SLOW[1])] * blocks
    elif straggler == "persistent":
        slow_b = slow_b[:1] * blocks
    slow_r = [
        np.mean(slow_b[number * round_steps // BLOCK : _blocks((number + 1) * round_steps)], axis=0)
        for number in range(rounds)
    ]
    share = round_steps / BLOCK
    links = {"up_s": LINK_S, "down_s": LINK_S, "control_s": CONTROL_S}
    scenario = [working(slow_w[:, None] * share, **links) for slow_w in slow_r]
    if straggler == "dead":
        at, dies_s_w = rounds // 5, scenario[0].dies_s_w.copy()
        dies_s_w[int(np.argmax(slow_b[0] > 1))] = share / 2
        scenario[at] = replace(scenario[at], dies_s_w=dies_s_w)
    return tuple(scenario)


def known_of(scene: Scene, seed: int) -> LocalClients:
    """Return what is known of the clients before the run, in a scene of a source."""
    links_s_w = np.full(CLIENTS, LINK_S)
    return LocalClients(np.mean(_recorded(scene, seed)[:HISTORY], axis=0) / BLOCK, links_s_w, links_s_w)


def _blocks(steps: int) -> int:
    return -(-steps // BLOCK)


def _recorded(scene: Scene, seed: int) -> list[NDArray[np.float64]]:
    """Return the paces of a source in its history and the run; its median client does a block in a second."""
    if scene.source is None:
        raise EdgeFailed(f"scene {scene.name}: saw no source, needed one")
    scenario = scene.source.make(CLIENTS, HISTORY + _blocks(scene.steps), seed)
    if scenario[0].clients < CLIENTS:
        raise EdgeFailed(f"{scene.source.name}: saw {scenario[0].clients} clients, needed {CLIENTS}")
    middle = float(np.median([each.mean_pace_w for each in scenario]))
    return [each.mean_pace_w / middle for each in scenario]


def _paces(rng: np.random.Generator) -> NDArray[np.float64]:
    slow_w = np.ones(CLIENTS)
    slow_w[rng.choice(CLIENTS, len(SLOW), replace=False)] = SLOW
    return slow_w
