"""`fedgc plan --model-gb`: what local work on a model of this size needs, and what a round of it takes."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from rich.table import Table

from fedgc.cli.view import duration, megabytes, terminal
from fedgc.config import Requirements, RunConfig, requirements
from fedgc.config.requirements import NUMBER_BYTES, gigabytes
from fedgc.deploy.app_folder import Setting
from fedgc.errors import Unusable
from fedgc.history import Speed
from fedgc.store.database import Store
from fedgc.store.engine import there
from fedgc.web.next_plan import local_clients

MEGABYTE = 1_000_000
FAR_LARGER = 10  # than the model that was measured: then latency may count for more than the link
LATENCY = "its transfers measure the latency; --uplink-mb-s gives the speed of the link"


@dataclass(frozen=True, slots=True)
class ModelAsked:
    """The options of the command."""

    settings: Mapping[str, Setting]
    model_gb: float
    clients: int | None = None
    uplink_mb_s: float = 0.0  # 0: as measured

    def __post_init__(self) -> None:
        if not 0.001 <= self.model_gb <= 10_000:
            raise Unusable(f"model-gb: saw {self.model_gb}, needed 0.001 to 10000")
        if self.clients is not None and self.clients < 1:
            raise Unusable(f"clients: saw {self.clients}, needed at least 1")
        if not 0 <= self.uplink_mb_s < float("inf"):
            raise Unusable(f"uplink-mb-s: saw {self.uplink_mb_s}, needed 0 or more")


@dataclass(frozen=True, slots=True)
class Links:
    """Bytes a second of the median client, and where they are from."""

    source: str
    up_bytes_s: float | None
    down_bytes_s: float | None


def plan_model(asked: ModelAsked, *, as_json: bool) -> None:
    """Print what is needed."""
    config = RunConfig.read({"work": "local", **asked.settings})
    clients = asked.clients or config.min_clients
    needs = requirements(config, int(asked.model_gb * 1e9 / NUMBER_BYTES), clients)
    links = _links(asked, config)
    if as_json:
        sys.stdout.write(json.dumps(_figures(config, clients, needs, links), indent=1) + "\n")
        return
    table = Table(title=f"Local work on a model of {gigabytes(needs.model)}", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, value in _facts(config, clients, needs, links).items():
        table.add_row(name, value)
    terminal().print(table)


def exchange_s(config: RunConfig, clients: int, needs: Requirements, links: Links) -> float | None:
    """Return the seconds of an exchange: the model to all clients at once, then uploads in their slots."""
    if not (links.up_bytes_s and links.down_bytes_s):
        return None
    turns = config.upload_turns(clients, needs.up)
    return needs.down / links.down_bytes_s + turns * needs.up / links.up_bytes_s


def _links(asked: ModelAsked, config: RunConfig) -> Links:
    if asked.uplink_mb_s > 0:
        rate = asked.uplink_mb_s * MEGABYTE
        return Links("as given, both ways", rate, rate)
    if not there():
        return Links("no client was measured yet: see --uplink-mb-s", None, None)
    with Store.open(reads_only=True) as store:
        known = tuple(store.speeds(config.workload).known.values())
        name, measured = store.name, _measured_bytes(store, config)
    ups, downs = ([each for each in rates if each] for rates in _rates(known))
    if not (ups and downs):
        return Links(f"store {name}, in which no link was measured: see --uplink-mb-s", None, None)
    source = f"store {name}, the median of {len(ups)} clients"
    if 0 < measured * FAR_LARGER <= asked.model_gb * 1e9:
        source += f", with a model of {megabytes(measured)}, far smaller than this one: {LATENCY}"
    return Links(source, median(ups), median(downs))


def _measured_bytes(store: Store, config: RunConfig) -> int:
    """Return the size of the model that these clients have last exchanged; 0 if it is not known."""
    run = next((each for each in store.runs() if each.task == config.workload), None)
    return local_clients(store, run)[1] * NUMBER_BYTES if run else 0


def _rates(known: Sequence[Speed]) -> tuple[list[float | None], list[float | None]]:
    return [each.up_bytes_s for each in known], [each.down_bytes_s for each in known]


def _figures(config: RunConfig, clients: int, needs: Requirements, links: Links) -> dict[str, object]:
    return {
        "clients": clients,
        "model_bytes": needs.model,
        "round": {
            "exchange_s": exchange_s(config, clients, needs, links),
            "up_bytes": clients * needs.up,
            "down_bytes": clients * needs.down,
            "links": links.source,
            "up_bytes_s": links.up_bytes_s,
            "down_bytes_s": links.down_bytes_s,
        },
        "server": {
            "memory_bytes": needs.server_memory,
            "scratch_bytes": needs.server_scratch,
            "checkpoint_bytes": needs.checkpoints,
        },
        "client": {"memory_bytes": needs.client_memory, "disk_bytes": needs.client_disk},
    }


def _facts(config: RunConfig, clients: int, needs: Requirements, links: Links) -> dict[str, str]:
    seconds = exchange_s(config, clients, needs, links)
    down, up = gigabytes(clients * needs.down), gigabytes(clients * needs.up)
    return {
        "an exchange": "unknown" if seconds is None else f"{duration(seconds)} beside the training",
        "links": links.source,
        "bytes of a round": f"{down} to {clients} clients, {up} from them",
        "the server's memory": gigabytes(needs.server_memory),
        "the server's disk": f"{gigabytes(needs.server_scratch)} for updates and earlier models, "
        f"{gigabytes(needs.checkpoints)} for checkpoints",
        "a client's memory": f"{gigabytes(needs.client_memory)} beside its training",
        "a client's disk": f"{gigabytes(needs.client_disk)} for models and the client cache",
    }
