"""The process of a training script: started by a launcher, its output bounded.

It runs under a supervisor, so that nothing that it has started outlives it or this client: torchrun's ranks
are in sessions of their own.
"""

import os
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from fedgc.errors import BadSetting, system_errors
from fedgc.processes import supervision
from fedgc.training.script.reason import reason_of

NOTEBOOK: Final = Path(__file__).with_name("notebook.py")
READ_BYTES: Final = 1 << 16
LARGEST_LOG: Final = 8 << 20  # bytes; the older half of twice as much is dropped
TAIL_BYTES: Final = 1 << 14  # of the output, in which the last line of a traceback is looked for
INHERITED: Final = (  # the client's own place in a launcher is not the script's
    "RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_PROCID", "SLURM_LOCALID",
)  # fmt: skip
END_S: Final = 10.0  # between a request to end and a kill


def command_of(script: str) -> list[str]:
    """Return the command line that the setting `script` stands for.

    A Python file is run by this Python, a notebook as by `jupyter execute`; else it is a program and its
    arguments.

    >>> command_of("train.py --lr 0.1")[1:]
    ['train.py', '--lr', '0.1']

    Raises:
        BadSetting: There is no command, or no program of this name.
    """
    try:
        words = shlex.split(script)
    except ValueError as error:
        raise BadSetting(f"setting script: saw {script!r}, needed a command line ({error})") from error
    if not words:
        raise BadSetting("setting script: saw no command, needed one such as train.py")
    if words[0].endswith(".py"):
        return [sys.executable, *words]
    if words[0].endswith(".ipynb"):
        return [sys.executable, "-P", str(NOTEBOOK), *words]
    found = shutil.which(words[0], path=_path(os.environ))
    if found is None:
        raise BadSetting(f"setting script: saw {words[0]!r}, which is not installed here")
    return [found, *words[1:]]


def _path(environment: Mapping[str, str]) -> str:
    """Return the search path with the programs beside this Python first."""
    return os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)])


def _inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what the script's environment takes over from the client's."""
    kept = {name: value for name, value in environment.items() if name not in INHERITED}
    return {**kept, "PATH": _path(environment)}


class ScriptProcess:
    """One run of the script."""

    def __init__(self, script: str, environment: Mapping[str, str], log: Path) -> None:
        """Start it; raise BadSetting or EdgeFailed if that cannot be."""
        command = command_of(script)
        self._log_path: Final = log
        self._tail = bytearray()
        with system_errors(f"{log.parent}", "a folder for the script's log"):
            log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with system_errors(f"script {script!r} could not be started"):
            self._process = subprocess.Popen(  # noqa: S603  the command that the client's owner or the run names
                [sys.executable, "-I", "-S", supervision.__file__, *command],
                stdin=subprocess.PIPE,  # closed with this process, which ends the script
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**_inherited(os.environ), "PYTHONUNBUFFERED": "1", **environment},
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, name="fedgc-script-output", daemon=True)
        self._reader.start()

    @property
    def ended(self) -> int | None:
        """The exit status; None while it runs."""
        return self._process.poll()

    def why_ended(self) -> str:
        """Return how it ended, and the exception that ended it."""
        self._reader.join(1.0)
        return reason_of(self._process.returncode, self._tail.decode(errors="replace"))

    def end(self, wait_s: float) -> None:
        """Give it `wait_s` to end by itself; then ask, then kill it and all that it started."""
        if not self._ends_within(wait_s):
            self._process.terminate()
            if not self._ends_within(END_S):
                supervision.kill_below(self._process.pid)
        if self._process.stdin is not None:
            self._process.stdin.close()  # the supervisor kills what is left
        self._ends_within(END_S)
        self._reader.join(1.0)

    def _ends_within(self, seconds: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.poll() is not None

    def _read(self) -> None:
        """Read all output, so that the script never waits for it; what the disk refuses is dropped."""
        source = self._process.stdout
        if source is None:
            return
        log = _Log(self._log_path)
        with source, suppress(OSError, ValueError):
            while data := os.read(source.fileno(), READ_BYTES):
                self._tail += data
                del self._tail[:-TAIL_BYTES]
                log.write(data)
        log.close()


class _Log:
    """The newest output in a file, the output before it in another; a full disk ends both."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = 0
        self._file: IO[bytes] | None = None
        with suppress(OSError):
            self._file = path.open("ab")  # the output of the script's earlier starts stays
            self._size = self._file.tell()

    def write(self, data: bytes) -> None:
        try:
            if self._file is None:
                return
            if self._size > LARGEST_LOG:
                self._turn(self._file)
            self._file.write(data)
            self._file.flush()
            self._size += len(data)
        except OSError:
            self.close()

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        self._file = None

    def _turn(self, file: IO[bytes]) -> None:
        shutil.copyfile(self._path, self._path.with_suffix(".old.log"))
        file.seek(0)
        file.truncate()
        self._size = 0
