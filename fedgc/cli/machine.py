"""The machine on which figures were computed, for their reports."""

import os
import platform
import re
from importlib.metadata import version
from pathlib import Path

from fedgc.processes.available import available_cores


def machine() -> dict[str, float | int | str | None]:
    """Return a description of this machine, without names or folders."""
    versions = {name: version(name) for name in ("numpy", "torch", "flwr")}
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": available_cores(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "python": platform.python_version(),
        **versions,
    }


def _processor() -> str:
    """Return the model of the processor; Linux tells it in a file only."""
    cpus = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: (.+)$", cpus.read_text(), re.MULTILINE) if cpus.exists() else None
    return found.group(1) if found else platform.processor()
