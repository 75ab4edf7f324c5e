"""What each receiver is told at its start."""

from dataclasses import dataclass, replace
from pathlib import Path

from fedgc.config import RunConfig
from fedgc.config.receivers import port_of


@dataclass(frozen=True, slots=True)
class ReceiverTerms:
    """The run, with the settings of the receiver's own listener, and where its files may be."""

    config: RunConfig
    run: str
    folder: Path


def config_of(config: RunConfig, place: int, count: int) -> RunConfig:
    """Return the settings of one of several receivers; its ports follow those that are given.

    >>> config_of(RunConfig(bind="0.0.0.0:9000", advertise="fl.example.org", upload_slots=5), 1, 2).bind
    '0.0.0.0:9001'
    """
    bind, advertise = _shifted(config.bind, place), _shifted(config.advertise, place)
    return replace(config, bind=bind, advertise=advertise, upload_slots=-(-config.upload_slots // count))


def _shifted(address: str, place: int) -> str:
    port = port_of(address)
    return f"{address.rpartition(':')[0]}:{port + place}" if port else address
