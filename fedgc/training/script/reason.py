"""Why a training script ended, from its exit status and the end of its output.

With several processes the exception of one rank makes the others fail in their collective operations, and
the launcher adds an exception of its own. The reason is the exception that the others followed.
"""

import re
import signal
from contextlib import suppress
from typing import Final

LONGEST: Final = 300  # characters of the exception's line
LAUNCHERS: Final = (
    "torch.distributed.elastic",
    "subprocess.CalledProcessError",
)  # accelerate's is the latter
EXCEPTIONS: Final = ("Error", "Exception", "Interrupt", "Exit", "BadTask", "TaskFailed", "EdgeFailed")
FOLLOWED: Final = re.compile(  # what a rank says if another has died, or if rank 0 has lost its client
    r"gloo|NCCL|TCPStore|[Cc]onnection (closed|reset|refused)|DistBackendError|DistNetworkError|EdgeFailed"
)
# torch and `srun --label` put the number of a rank there, and Python the bar of a group of exceptions.
RANK: Final = re.compile(r"^((\[rank\d+\]:|\d+:|\[default\d+\]:|\|)\s*)+")
RULE: Final = re.compile(r"^\+[-+ \d]+$")  # between the exceptions of a group
KILLED: Final = re.compile(r"^traceback : (Signal \d+ \(\w+\))")  # torchrun's report of the first failure
OURS: Final = re.compile(r"^fedgc\.errors\.\w+: ")  # the kind of an error whose message is complete
OF_RANK: Final = re.compile(r"^rank\s*: (\d+)")
IGNORED: Final = (
    re.compile(  # what Python reports of an object that it removes, such as a bar, as the script ends
        r"^Exception ignored .*\n?(?:Traceback .*\n(?:[ \t].*\n)*.*\n?)?", re.MULTILINE
    )
)


def reason_of(status: int | None, output: str) -> str:
    r"""Return one line: how the script ended, and the exception that ended it.

    >>> reason_of(1, "Traceback (most recent call last):\n  ...\nValueError: no such file\n")
    'the script ended: exit status 1: ValueError: no such file'
    >>> reason_of(137, "loading data\n")
    'the script ended: killed by SIGKILL'
    """
    output = IGNORED.sub("", output)
    stripped = (RANK.sub("", each.strip()) for each in output.splitlines())
    lines = [line for line in stripped if line and not RULE.match(line)]
    told = [line for line in lines if _is_exception(line)]
    causes = [line for line in told if not FOLLOWED.search(line)]
    killed = _killed_rank(lines)
    how = _how(status)
    last = lines[-1:] if how.startswith("exit") else []
    words = OURS.sub("", next(iter([*causes[-1:], *killed[-1:], *told[-1:], *last]), ""))
    return f"the script ended: {how}" + (f": {words[:LONGEST]}" if words else "")


def _is_exception(line: str) -> bool:
    """Whether a line is the last one of a traceback: an exception's name and message."""
    name, _, _ = line.partition(":")
    is_name = name.replace(".", "").replace("_", "").isalnum() and not line.startswith(LAUNCHERS)
    return is_name and name.endswith(EXCEPTIONS)


def _killed_rank(lines: list[str]) -> list[str]:
    """Return what torchrun reports of ranks that a signal has killed."""
    rank, found = "", []
    for line in lines:
        if match := OF_RANK.match(line):
            rank = match[1]
        elif match := KILLED.match(line):
            found.append(f"rank {rank}: {match[1]}")
    return found


def _how(status: int | None) -> str:
    number = -status if status is not None and status < 0 else (status or 0) - 128  # as a shell says it
    with suppress(ValueError):
        return f"killed by {signal.Signals(number).name}"
    return f"exit status {status}"
