"""`make docker-check`: a whole fleet from the images, on a network of its own, told step by step.

Needs root (namespaces), buildah, debootstrap and iproute2; docker/wheels is used where it holds wheels. Its
one word is the folder in which images are kept between calls. What is shown: images are built, keys made,
devices let in, strangers and curious devices refused, a run trained; the same run again with a device cut off
in the midst of a round and another's power lost, which must give the same model; a key revoked. Ends 0 if all
of it was so.
"""

import signal
import sys
import tempfile
import time
from pathlib import Path

from images import Images
from story import Failed, Story

REPOSITORY = Path(__file__).resolve().parents[2]


def main() -> int:
    """Tell the story; clean up, whatever happens."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    cache = Path(sys.argv[1]).resolve()
    cache.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="check-", dir=cache) as folder:
        Path(folder).chmod(0o755)
        try:
            Story(Path(folder), Images(cache, REPOSITORY), REPOSITORY).tell()
        except Failed as error:
            print(f"\ndocker-check: FAILED: {error}", flush=True)
            return 1
        except KeyboardInterrupt:
            print("\ndocker-check: interrupted; everything that it started is gone", flush=True)
            return 130
    print(f"\ndocker-check: all of it was so, in {time.monotonic() - began:.0f} s", flush=True)
    return 0


sys.exit(main())
