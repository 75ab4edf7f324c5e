"""The memory and the cores that are available to this process, the room on a disk, and what machine it is."""

import ctypes
import math
import os
import platform
import re
import shutil
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Final

MEMINFO: Final = Path("/proc/meminfo")
CGROUP: Final = Path("/sys/fs/cgroup")  # of a container, version 2
TRIM_THRESHOLD: Final = -1  # glibc's names of what mallopt sets, with values that it takes in each version
MMAP_THRESHOLD: Final = -3
LARGEST_BLOCKS: Final = (32 << 20, 1 << 30)
NEVER: Final = -1


def available_memory(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int | None:
    """Return the bytes that can be used without swapping, within a container's limit; None if not known."""
    found = [each for each in (_of_machine(meminfo), _of_container(cgroup)) if each is not None]
    return min(found, default=None)


def available_cores(cgroup: Path = CGROUP) -> int:
    """Return how many cores this process may use, within a container's limit; a part of a core counts as one.

    >>> 1 <= available_cores() <= os.cpu_count()
    True
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # no limit is written as "max"
        quota_us, period_us = map(int, (cgroup / "cpu.max").read_text().split())
        cores = min(cores, max(1, math.ceil(quota_us / period_us)))
    return cores


def free_disk(folder: Path) -> int | None:
    """Return the free bytes of the disk with this folder, which may not exist yet; None if not known."""
    there = next((each for each in (folder, *folder.absolute().parents) if each.exists()), None)
    with suppress(OSError):
        return shutil.disk_usage(there).free if there is not None else None
    return None


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


def release_memory() -> None:
    """Give freed memory back to the system, where the C library keeps it, as of small tensors."""
    with suppress(OSError, AttributeError, TypeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)


def keep_memory() -> None:
    """Let this process keep the memory that it frees, as each training step allocates as much again.

    glibc returns large blocks to the system. Each page of the next block is then a page fault.
    """
    with suppress(OSError, AttributeError, TypeError):  # another C library than glibc
        mallopt = ctypes.CDLL(None).mallopt
        for size in LARGEST_BLOCKS:
            mallopt(MMAP_THRESHOLD, size)
        mallopt(TRIM_THRESHOLD, NEVER)


def _of_machine(meminfo: Path) -> int | None:
    with suppress(OSError, ValueError):
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return None


def _of_container(cgroup: Path) -> int | None:
    """Return the limit less what is used and cannot be taken back."""
    with suppress(OSError, ValueError):
        limit, used = (int((cgroup / name).read_text()) for name in ("memory.max", "memory.current"))
        lines = (line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        files = sum(int(value) for name, value in lines if name in {"inactive_file", "active_file"})
        return max(0, limit - used + files)
    return None


def _processor() -> str:
    """Return the model of the processor; Linux tells it in a file only."""
    cpus = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: (.+)$", cpus.read_text(), re.MULTILINE) if cpus.exists() else None
    return found.group(1) if found else platform.processor()
