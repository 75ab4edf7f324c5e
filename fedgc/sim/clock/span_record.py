"""A record of what clients worked on, for runs that are watched."""

from collections.abc import Iterable, Sequence

from fedgc.sim.clock.interfaces import Span

Stretch = tuple[int, int, float, float, bool]  # client, chunk, begin, end, finished


class SpanRecord:
    """The spans of all clients since they were read last."""

    def __init__(self, clients: Sequence[str]) -> None:
        self._clients = clients
        self._stretches: list[Stretch] = []
        self._mixed: set[tuple[int, int]] = set()  # client and chunk of sent vectors

    def add(self, w: int, chunk: int, begin: float, end: float, *, finished: bool) -> None:
        """Note that a client worked on a chunk."""
        self._stretches.append((w, chunk, begin, end, finished))

    def mixed(self, w: int, chunks: Iterable[int]) -> None:
        """Note that a client has sent a vector made of these chunks."""
        self._mixed.update((w, chunk) for chunk in chunks)

    def spans(self) -> tuple[Span, ...]:
        """Return and clear the spans."""
        stretches, self._stretches = self._stretches, []
        mixed, self._mixed = self._mixed, set()
        return tuple(
            Span(self._clients[w], chunk, begin, end, finished, finished and (w, chunk) in mixed)
            for w, chunk, begin, end, finished in stretches
        )
