"""`make docker-check`: test a fleet from the images on its own network, step by step.

Needs root (namespaces), buildah, debootstrap and iproute2; wheels in docker/wheels are used. The argument is
the folder in which images are kept between calls. The steps: build images, make keys, register clients; bad
input of every kind is refused in one line (refused.py); train a run; repeat it with one client cut off in the
middle of a round and another killed, which must give the same model; do a run with a closed session port, and
one of two sites. The exit code is 0 if all steps passed.

Modules, each of which may import those before it and fedgc.flower: compose, network, images; fleet; stage;
refused, sites; story.
"""

import fcntl
import signal
import sys
import tempfile
import time
from pathlib import Path

from images import Images
from stage import Failed
from story import Story

REPOSITORY = Path(__file__).resolve().parents[2]
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A signal ended the check; its number is that signal's."""


def stop(number: int, _: object) -> None:
    """End the check, and ignore further signals during the cleanup."""
    for each in STOPS:
        signal.signal(each, signal.SIG_IGN)
    raise Stopped(number)


def main() -> int:
    """Run the check; clean up in any case."""
    for each in STOPS:
        signal.signal(each, stop)
    cache = Path(sys.argv[1]).resolve()
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"docker-check: another one is at work in {cache}; needed a folder of its own", flush=True)
            return 2
        return tell(cache)


def tell(cache: Path) -> int:
    """Run the check in this folder; return the exit code."""
    images, began = Images(cache, REPOSITORY), time.monotonic()
    images.clear()  # of a check that was killed
    try:
        with tempfile.TemporaryDirectory(prefix="check-", dir=cache) as folder:
            Path(folder).chmod(0o755)
            Story(Path(folder), images, REPOSITORY).tell()
    except Failed as error:
        print(f"\ndocker-check: FAILED: {error}", flush=True)
        return 1
    except Stopped as error:
        print("\ndocker-check: stopped; everything that it started is gone", flush=True)
        return 128 + int(error.args[0])
    finally:
        images.clear()
    print(f"\ndocker-check: all of it was so, in {time.monotonic() - began:.0f} s", flush=True)
    return 0


sys.exit(main())
