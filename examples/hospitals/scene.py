"""The scene: eight hospitals, their data, speeds, links and faults, after MediSwarm (README.md).

Site 0 holds half of the data and needs 20 times as long for a round. The label proportions of each site are
drawn from a Dirichlet distribution (Hsu et al., arXiv:1909.06335), so sites differ in what they see. Each
site scores a model on held-out images in its own label proportions.

Time is simulated: a round of 48 local steps takes ten minutes at seven sites. The model that is trained is
small; each transfer takes as long as one of 100 MB on 20 Mbit/s, and counts as much.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.images import Images, images
from benchmarks.scene import read
from fedgc.sim.clock import Conditions, Scenario, working
from fedgc.training.tasks import Task

SHARES: Final = (0.50, 0.12, 0.10, 0.08, 0.07, 0.06, 0.04, 0.03)  # of the data
SITES: Final = len(SHARES)
BIG: Final = 0
SKEW: Final = 0.3  # of the Dirichlet distribution
STEPS: Final = 48  # local steps of a round
ROUND_S: Final = 600.0  # of the quick sites
SLOWER: Final = 20.0
MODEL_MB: Final = 100.0
UPLINK_MBIT_S: Final = 20.0
TRANSFER_S: Final = MODEL_MB * 8 / UPLINK_MBIT_S
CONTROL_S: Final = 0.05
HOUR_S: Final = 3600.0
ROUNDS: Final = 20  # of the consortium that waits for all, as in MediSwarm's run
HOURS: Final = ROUNDS * (SLOWER * ROUND_S + 2 * TRANSFER_S) / HOUR_S

if TYPE_CHECKING:
    from torch import nn

Int = NDArray[np.int64]
Float = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Outage:
    """A site whose process ends and comes back; its unfinished work is lost."""

    site: int
    from_h: float
    hours: float


OUTAGES: Final = (Outage(6, 0.5, 1 / 6), Outage(4, 1.0, 5.0))  # one restarts, one is away


@dataclass(frozen=True, slots=True)
class Sites:
    """The training samples of each site."""

    images: Images
    rows: Sequence[Int]

    @property
    def shares_wc(self) -> Float:
        """Return the share of each class in the data of each site."""
        classes = int(self.images.labels.max()) + 1
        counts = [np.bincount(self.images.labels[each], minlength=classes) for each in self.rows]
        shares: Float = np.array(counts) / np.array([[len(each)] for each in self.rows])
        return shares

    def task(self) -> Task:
        """Return the task: a chunk for each site; the accuracy of each class is a figure."""
        chunks = {f"chunk {site:04}": each for site, each in enumerate(self.rows)}
        whole = images(self.images, chunks, model="mlp", optimizer="sgd")
        return replace(whole, evaluate=self.evaluate)

    def evaluate(self, module: "nn.Module") -> Mapping[str, float]:
        """Return the accuracy on all held-out images, and that of each class."""
        import torch

        labels = self.images.test_labels
        right = module(torch.from_numpy(self.images.test_inputs)).argmax(dim=1).numpy() == labels
        classes = range(self.shares_wc.shape[1])
        by_class = {class_figure(label): float(right[labels == label].mean()) for label in classes}
        return {"accuracy": float(right.mean()), **by_class}

    def points(self, metrics: Mapping[str, float]) -> Float:
        """Return the accuracy on held-out images in each site's label proportions, in points."""
        by_class = [metrics[class_figure(label)] for label in range(self.shares_wc.shape[1])]
        points: Float = 100.0 * self.shares_wc @ np.array(by_class)
        return points


def class_figure(label: int) -> str:
    """Return the name of a class's accuracy."""
    return f"accuracy of class {label}"


def sites_of(seed: int) -> Sites:
    """Return the sites of a seed."""
    table = read(None).images
    return Sites(table, dealt(table.labels, np.random.default_rng([seed, 1])))


def dealt(labels: Int, rng: np.random.Generator) -> list[Int]:
    """Deal every sample to a site: sizes as `SHARES`, labels by each site's drawn proportions.

    >>> parts = dealt(np.arange(400) % 4, np.random.default_rng(0))
    >>> [len(part) for part in parts], len(np.unique(np.concatenate(parts)))
    ([200, 48, 40, 32, 28, 24, 16, 12], 400)
    """
    classes = int(labels.max()) + 1
    left = [rng.permutation(np.flatnonzero(labels == label)).tolist() for label in range(classes)]
    ends = np.round(np.cumsum(SHARES) * len(labels)).astype(np.int64)
    parts = []
    for size in np.diff(ends, prepend=0).tolist():
        wanted_c = rng.dirichlet([SKEW] * classes)
        mine = [left[_next(wanted_c, left, rng)].pop() for _ in range(size)]
        parts.append(np.array(mine, np.int64))
    return parts


def _next(wanted_c: Float, left: Sequence[Sequence[int]], rng: np.random.Generator) -> int:
    """Return the class of a site's next sample, of those that are left."""
    there_c = np.array([len(each) for each in left], np.float64)
    weights_c = np.where(there_c > 0, wanted_c, 0.0)
    if weights_c.sum() < 1e-9:
        weights_c = there_c
    return int(rng.choice(len(left), p=weights_c / weights_c.sum()))


def site_of(client: str) -> int:
    """Return the number of a simulated client.

    >>> site_of("client 3")
    3
    """
    return int(client.split()[1])


def scenario_of(rounds: int, steps: int, round_s: float) -> Scenario:
    """Return the conditions of rounds of this many local steps, each of which takes about `round_s`."""
    pace_w = np.full(SITES, ROUND_S * steps / STEPS)
    pace_w[BIG] *= SLOWER
    calm = working(pace_w[:, None], up_s=TRANSFER_S, down_s=TRANSFER_S, control_s=CONTROL_S)
    scenario = [calm] * rounds
    for outage in OUTAGES:
        number, after_s = divmod(outage.from_h * HOUR_S, round_s)
        if number < rounds:
            scenario[int(number)] = _without(scenario[int(number)], outage, after_s)
    return tuple(scenario)


def _without(conditions: Conditions, outage: Outage, after_s: float) -> Conditions:
    """Return the conditions of the round in which an outage begins."""
    dies_s_w, returns_s_w = conditions.dies_s_w.copy(), conditions.returns_s_w.copy()
    dies_s_w[outage.site], returns_s_w[outage.site] = after_s, after_s + outage.hours * HOUR_S
    return replace(conditions, dies_s_w=dies_s_w, returns_s_w=returns_s_w)
