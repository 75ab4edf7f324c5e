"""Sinks of other packages, named by the setting `history.sinks`, in addition to the run's own sink."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from fedgc.config import RunConfig
from fedgc.errors import BadSetting, words_of
from fedgc.flower.sink import Live, Sink, Windows
from fedgc.history import BestModel, RoundRow
from fedgc.links.log import LOG
from fedgc.plugins import subclass

GROUP: Final = "fedgc.sinks"


def opened(config: RunConfig, run: str) -> tuple[Sink, ...]:
    """Make the sinks named by the settings; raise BadSetting if one cannot be made."""
    names = [name.strip() for name in config.sinks.split(",") if name.strip()]
    return tuple(_opened(name, config, run) for name in names)


def _opened(name: str, config: RunConfig, run: str) -> Sink:
    make: Callable[[str, RunConfig], Sink] = subclass(Sink, GROUP, name, "history.sinks")
    try:
        return make(run, config)
    except Exception as error:  # another package may raise anything
        raise BadSetting(f"setting history.sinks: making {name!r} raised {words_of(error)}") from error


class Sinks(Sink):
    """Forwards all calls to the run's own sink, then to the others; an other sink that raises is removed."""

    def __init__(self, own: Sink, others: Sequence[Sink]) -> None:
        self._own: Final = own
        self._others = tuple(others)

    def append(self, row: RoundRow) -> None:
        """Pass on a finished round."""
        self._tell(lambda sink: sink.append(row))

    def present(self, live: Live) -> None:
        """Pass on the state of the run."""
        self._tell(lambda sink: sink.present(live))

    def evaluated(self, round_: int, metrics: Mapping[str, float]) -> None:
        """Pass on the metrics of the model."""
        self._tell(lambda sink: sink.evaluated(round_, metrics))

    def scored(self, round_: int, client: str, samples: int, metrics: Mapping[str, float]) -> None:
        """Pass on the metrics of the model on the data of one client."""
        self._tell(lambda sink: sink.scored(round_, client, samples, metrics))

    def improved(self, best: BestModel) -> None:
        """Pass on the best model so far."""
        self._tell(lambda sink: sink.improved(best))

    def ended_early(self, reason: str) -> None:
        """Pass on why the run is complete."""
        self._tell(lambda sink: sink.ended_early(reason))

    def stopped(self, reason: str) -> None:
        """Pass on the end of the process."""
        self._tell(lambda sink: sink.stopped(reason))

    def chose(self, round_: int, basis: Mapping[str, object], reason: str) -> None:
        """Pass on a new plan."""
        self._tell(lambda sink: sink.chose(round_, basis, reason))

    def assigned(self, round_: int, chunks: Sequence[str]) -> None:
        """Pass on the chunks of a client."""
        self._tell(lambda sink: sink.assigned(round_, chunks))

    def has_hours(self, round_: int, client: str, windows: Windows) -> None:
        """Pass on when a client may train."""
        self._tell(lambda sink: sink.has_hours(round_, client, windows))

    def audited(self, kind: str, who: str, what: str) -> None:
        """Pass on a security event."""
        self._tell(lambda sink: sink.audited(kind, who, what))

    def close(self) -> None:
        """Close all sinks."""
        self._tell(lambda sink: sink.close())

    def _tell(self, tell: Callable[[Sink], None]) -> None:
        tell(self._own)
        for sink in self._others:
            try:
                tell(sink)
            except Exception as error:  # a sink of another package must not end the run
                LOG.warning(
                    "sink %s raised %s; it is left out from now on", type(sink).__name__, words_of(error)
                )
                self._others = tuple(each for each in self._others if each is not sink)
