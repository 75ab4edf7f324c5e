"""A task that needs a package installed only on the server."""

from pathlib import Path

from fedgc.config import RunConfig
from fedgc.training.tasks import Task, named

if "clientapp" in Path("/proc/self/cmdline").read_text():
    import package_of_the_server  # noqa: F401


def digits(config: RunConfig) -> Task:
    return named("digits", config)
