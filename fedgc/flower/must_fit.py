"""Refuses a model that the memory or the disk of this machine cannot hold, before the run starts."""

from pathlib import Path

from fedgc.config import Requirements, RunConfig, requirements
from fedgc.config.requirements import NUMBER_BYTES, gigabytes
from fedgc.errors import Unusable
from fedgc.large_vectors import IN_MEMORY_BYTES
from fedgc.processes.available import available_memory, free_disk


def must_fit_server(config: RunConfig, numbers: int, folder: Path, *, resumes: bool) -> None:
    """Refuse a model that the server's memory or disk cannot hold; small models are not looked at.

    The checkpoints of a run that resumes are there already.
    """
    if _is_measured(config, numbers):
        needs = requirements(config, numbers, config.min_clients)
        disk = needs.server_scratch if resumes else needs.server_disk
        _must_fit("the server", needs, (needs.server_memory, disk), folder)


def must_fit_client(config: RunConfig, numbers: int, folder: Path) -> None:
    """Refuse a model that a client's memory or disk cannot hold beside its training."""
    if _is_measured(config, numbers):
        needs = requirements(config, numbers, config.min_clients)
        _must_fit("the client", needs, (needs.client_memory, needs.client_disk), folder)


def _is_measured(config: RunConfig, numbers: int) -> bool:
    large = NUMBER_BYTES * numbers > IN_MEMORY_BYTES
    return large and (config.work, config.secrecy, config.client_app) == ("local", "open", "fedgc")


def _must_fit(who: str, needs: Requirements, needed: tuple[int, int], folder: Path) -> None:
    seen = available_memory(), free_disk(folder)
    if all(there is None or there >= need for there, need in zip(seen, needed, strict=True)):
        return
    memory, disk = ("an unknown size" if each is None else gigabytes(each) for each in seen)
    raise Unusable(
        f"{who} has no room for a model of {gigabytes(needs.model)}: saw {memory} of memory and {disk} of "
        f"disk in {folder}, needed {gigabytes(needed[0])} and {gigabytes(needed[1])}"
    )
