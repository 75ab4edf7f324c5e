"""How many processes of a server receive."""

from typing import Final

from fedgc.config.fields import AUTO
from fedgc.config.run_config import RunConfig
from fedgc.errors import BadSetting
from fedgc.processes.available import available_cores

MOST: Final = 4  # by themselves: then the process that adds the vectors takes longest
CORES_EACH: Final = 2  # that the server may use,
CLIENTS_EACH: Final = 250  # and of the clients that a run needs
LAST_PORT: Final = 65535


def receivers_of(config: RunConfig, cores: int | None = None) -> int:
    """Return how many processes receive, by default with the cores that are available.

    >>> receivers_of(RunConfig(min_clients=1000), cores=8), receivers_of(RunConfig(), cores=8)
    (4, 1)
    """
    count = _count(config, cores)
    for key, address in (("links.bind", config.bind), ("links.advertise", config.advertise)):
        if (port := port_of(address)) > LAST_PORT - count + 1:
            with_others = f" with {count} receivers, each at a port of its own" if count > 1 else ""
            raise BadSetting(
                f"setting {key}: saw port {port}, needed at most {LAST_PORT - count + 1}{with_others}"
            )
    return count


def _count(config: RunConfig, cores: int | None) -> int:
    if config.receivers == AUTO:
        if config.authority or port_of(config.advertise) or port_of(config.bind):
            return 1
        cores = cores or available_cores()
        return max(1, min(MOST, cores // CORES_EACH, config.min_clients // CLIENTS_EACH))
    if config.authority and config.receivers > 1:
        raise BadSetting(
            f"setting links.receivers: saw {config.receivers} with links.authority, needed 1: a proxy that "
            "terminates TLS passes sessions on to one port"
        )
    return config.receivers


def port_of(address: str) -> int:
    """Return the port that an address names; 0 if it names none.

    >>> port_of("0.0.0.0:9094"), port_of("127.0.0.1:0"), port_of("fl.example.org")
    (9094, 0, 0)
    """
    _, separator, text = address.rpartition(":")
    return int(text) if separator and text.isdigit() else 0
