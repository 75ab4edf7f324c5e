"""`make docker-check`: a whole fleet from the images, on a network of its own, told step by step.

Needs root (namespaces), buildah, debootstrap and iproute2; docker/wheels is used where it holds wheels. Its
one word is the folder in which images are kept between calls. What is shown: images are built, keys made,
clients let in; bad input of every kind refused in one line (refused.py); a run trained; the same run again
with a client cut off in the midst of a round and another's power lost, which must give the same model; a run
whose session port is closed. Ends 0 if all of it was so.

Rooms, each of which may import those before it and fedgc.flower: compose, network, images; fleet; stage;
refused; story.
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
    """A signal ends it; its number is that signal's."""


def stop(number: int, _: object) -> None:
    """End it, and let no further signal disturb the clearing up."""
    for each in STOPS:
        signal.signal(each, signal.SIG_IGN)
    raise Stopped(number)


def main() -> int:
    """Tell the story; clean up, whatever happens."""
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
    """Tell the story in this folder; return the exit code."""
    images, began = Images(cache, REPOSITORY), time.monotonic()
    images.clear()  # of one that was killed
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
