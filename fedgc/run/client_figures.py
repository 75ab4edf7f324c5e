"""What models are worth on the data of the clients: figures of each client, and their weighted mean."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from statistics import median
from typing import Final

from fedgc.messages import MOST_FIGURES, Scored
from fedgc.round.local.weights import bounded_weights

VERSIONS_KEPT: Final = 2  # of which figures still come in: the newest, and the one before


def means_of(
    scores: Iterable[tuple[str, int, Mapping[str, float]]], largest_share: float
) -> dict[str, float]:
    """Return the means of figures, given as (client, samples, figures); large clients count in part."""
    samples: dict[str, dict[str, int]] = {}
    values: dict[str, dict[str, float]] = {}
    for client, count, figures in scores:
        for name, value in figures.items():
            samples.setdefault(name, {})[client] = count
            values.setdefault(name, {})[client] = value
    means = {}
    for name, of_clients in values.items():
        weights = bounded_weights(samples[name], largest_share)
        total = sum(weights[client] * value for client, value in of_clients.items())
        means[name] = total / sum(weights.values())
    return means


class ClientFigures:
    """Collects the figures of the newest models.

    If it `carries`, a client that has not scored a model counts with the figures of the last one that it has
    scored. So models are compared by the same clients, although clients that are behind score few of them.

    >>> figures = ClientFigures()
    >>> _ = figures.enter(Scored(0.0, "a", 1, 10, (("accuracy", 0.5),)))
    >>> _ = figures.enter(Scored(0.0, "b", 1, 30, (("accuracy", 0.9),)))
    >>> figures.mean(1), figures.complete(1, {"a", "b"})
    ({'accuracy': 0.8}, True)
    """

    def __init__(self, *, carries: bool = False, largest_share: float = 1.0) -> None:
        """`largest_share` of the samples is what large clients count for, whatever they claim."""
        self.carries: Final = carries
        self._largest_share = largest_share
        self._scores: dict[int, dict[str, Scored]] = {}
        self._names: dict[str, set[str]] = {}  # of the figures of each client
        self._last: dict[str, Scored] = {}  # of each client, if it carries
        self._before: dict[int, dict[str, Scored]] = {}  # those at the first score of a version

    def enter(self, scored: Scored, present: Collection[str] | None = None) -> Scored:
        """Enter the figures of a client, the last of a version counts; return those that count.

        Clients not `present` are left out. A client may name so many figures over the run as of one model, so
        that names cannot fill the store.
        """
        names = self._names.setdefault(scored.client, set())
        new = [name for name, _ in scored.figures if name not in names]
        names.update(new[: MOST_FIGURES - len(names)])
        kept = tuple(each for each in scored.figures if each[0] in names)
        scored = replace(scored, figures=kept)
        if scored.version not in self._scores:
            self._before[scored.version] = dict(self._last)
        self._scores.setdefault(scored.version, {})[scored.client] = scored
        for old in sorted(self._scores)[:-VERSIONS_KEPT]:
            del self._scores[old], self._before[old]
        if self.carries:
            self._last[scored.client] = scored
            there = self._last.keys() if present is None else set(present)
            self._last = {client: each for client, each in self._last.items() if client in there}
        return scored

    def complete(self, version: int, clients: Collection[str]) -> bool:
        """Whether all of these clients have scored this version."""
        return bool(clients) and set(clients) <= self.answered(version)

    def answered(self, version: int) -> frozenset[str]:
        """Return the clients that have scored this version, or said why they could not."""
        return frozenset(self._scores.get(version, {}))

    def mean(self, version: int) -> Mapping[str, float]:
        """Return the means over the clients that report a figure, weighted by their samples.

        Large clients count for a limited share, as their updates do.

        >>> figures = ClientFigures(largest_share=0.5)
        >>> for client, samples, loss in (("a", 10, 0.4), ("b", 10, 0.6), ("c", 10**15, 9.5)):
        ...     _ = figures.enter(Scored(0.0, client, 1, samples, (("loss", loss),)))
        >>> figures.mean(1)
        {'loss': 5.0}
        """
        of = ((each.client, each.samples, dict(each.figures)) for each in self._of(version))
        return means_of(of, self._largest_share)

    def median(self, version: int) -> Mapping[str, float]:
        """Return the medians of the figures that most clients report, of those that report any.

        So no minority chooses a figure by a name of its own.
        """
        values: dict[str, list[float]] = {}
        for each in self._of(version):
            for name, value in each.figures:
                values.setdefault(name, []).append(value)
        clients = sum(bool(each.figures) for each in self._of(version))
        return {name: median(each) for name, each in values.items() if 2 * len(each) > clients}

    def _of(self, version: int) -> Collection[Scored]:
        return (self._before.get(version, {}) | self._scores.get(version, {})).values()
