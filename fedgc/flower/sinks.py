"""Sinks of other packages, which the setting `history.sinks` names, beside the run's own sink."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from fedgc.config import RunConfig
from fedgc.errors import BadSetting
from fedgc.flower.sink import Live, Sink
from fedgc.history import RoundRow
from fedgc.links.log import LOG
from fedgc.plugins import load

GROUP: Final = "fedgc.sinks"


def opened(config: RunConfig, run: str) -> tuple[Sink, ...]:
    """Make the sinks that the settings name; raise BadSetting where one cannot be made."""
    names = [name.strip() for name in config.sinks.split(",") if name.strip()]
    return tuple(_opened(name, config, run) for name in names)


def _opened(name: str, config: RunConfig, run: str) -> Sink:
    kind = load(GROUP, name, "setting history.sinks")
    if not (isinstance(kind, type) and issubclass(kind, Sink)):
        raise BadSetting(
            f"setting history.sinks: {name!r} is {kind!r}, needed a subclass of fedgc.flower.sink.Sink"
        )
    make: Callable[[str, RunConfig], Sink] = kind
    try:
        return make(run, config)
    except Exception as error:  # a package of somebody else may raise anything
        raise BadSetting(
            f"setting history.sinks: making {name!r} raised {type(error).__name__}: {error}"
        ) from error


class Sinks(Sink):
    """Passes everything to the run's own sink, then to the others; one of them that raises is dropped."""

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

    def stopped(self, reason: str) -> None:
        """Pass on that the process is ended."""
        self._tell(lambda sink: sink.stopped(reason))

    def chose(self, round_: int, basis: Mapping[str, object], reason: str) -> None:
        """Pass on a new plan."""
        self._tell(lambda sink: sink.chose(round_, basis, reason))

    def audited(self, kind: str, who: str, what: str) -> None:
        """Pass on a security event."""
        self._tell(lambda sink: sink.audited(kind, who, what))

    def close(self) -> None:
        """Close them all."""
        self._tell(lambda sink: sink.close())

    def _tell(self, tell: Callable[[Sink], None]) -> None:
        tell(self._own)
        for sink in self._others:
            try:
                tell(sink)
            except Exception as error:  # a sink of somebody else must not end the run
                said = f"{type(error).__name__}: {error}"
                LOG.warning("sink %s raised %s; it is left out from now on", type(sink).__name__, said)
                self._others = tuple(each for each in self._others if each is not sink)
