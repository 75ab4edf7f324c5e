"""Images without an engine: a Debian base made by debootstrap, our Dockerfiles built on it by buildah.

chroot isolation needs neither an engine nor control groups. Base and layers are kept between calls in the
folder that is given, so that a second call builds what has changed.
"""

import os
import shutil
import struct
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SUITE, MIRROR = "bookworm", "http://deb.debian.org/debian"
BASE = "localhost/debian:bookworm-slim"
BALLAST = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "var/cache/apt",
    "var/lib/apt/lists",
)


@dataclass(frozen=True, slots=True)
class Images:
    """buildah with a store of its own."""

    folder: Path
    repository: Path

    def buildah(self, *words: str) -> list[str]:
        """Return buildah's command line."""
        places = ["--root", str(self.folder / "storage"), "--runroot", str(self.folder / "runroot")]
        return ["buildah", *places, "--storage-driver", "overlay", *words]

    def say(self, *words: str) -> str:
        """Run buildah and return what it says."""
        done = subprocess.run(self.buildah(*words), capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"buildah {words[0]}: {done.stderr.strip()[-2000:]}")
        return done.stdout.strip()

    def has(self, image: str) -> bool:
        """Return whether an image is there."""
        return image in self.say("images", "--format", "{{.Name}}:{{.Tag}}").split()

    def make_base(self) -> None:
        """Make what `FROM debian:bookworm-slim` stands for, where it is not there."""
        if self.has(BASE):
            return
        root = self.folder / "base"
        shutil.rmtree(root, ignore_errors=True)
        subprocess.run(
            ["debootstrap", "--variant=minbase", SUITE, str(root), MIRROR],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        for ballast in BALLAST:
            shutil.rmtree(root / ballast, ignore_errors=True)
            (root / ballast).mkdir(parents=True)
        made = self.say("from", "scratch")
        self.say("add", "-q", made, str(root), "/")
        self.say("commit", "-q", "--rm", made, BASE)
        shutil.rmtree(root)

    def build(self, dockerfile: str, image: str) -> None:
        """Build one of our Dockerfiles."""
        words = [
            "bud",
            "-q",
            "--isolation",
            "chroot",
            "--layers",
            "--force-rm",
            "--format",
            "docker",
            "--from",
            BASE,
        ]
        self.say(*words, "-f", str(self.repository / dockerfile), "-t", image, str(self.repository))

    def container(self, image: str) -> str:
        """Return a new container of an image."""
        return self.say("from", "--pull-never", image)

    def mounted(self, container: str) -> Path:
        """Return where a container's root lies."""
        return Path(self.say("mount", container))

    def clear(self) -> None:
        """Remove every container, also those of a build that was broken off."""
        subprocess.run(self.buildah("rm", "--all"), capture_output=True, check=False)

    def remove(self, containers: Iterable[str]) -> None:
        """Remove containers, whatever they hold."""
        for each in containers:
            subprocess.run(self.buildah("rm", each), capture_output=True, check=False)


def megabytes(folders: Iterable[Path]) -> float:
    """Return what lies in these folders, on disk."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for top in folders:
        for here, _, files in os.walk(top):
            for name in files:
                about = (Path(here) / name).lstat()
                if (about.st_dev, about.st_ino) not in seen:
                    seen.add((about.st_dev, about.st_ino))
                    total += about.st_blocks * 512
    return total / 1e6


def uncompiled(root: Path) -> list[str]:
    """Return the modules of an image that are compiled at every start, as nothing can be written there."""
    tops = [*root.glob("usr/lib/python3*"), *root.glob("opt/fedgc/lib/python3*/site-packages")]
    sources = [each for top in tops for each in top.rglob("*.py") if not each.is_symlink()]
    return [str(each.relative_to(root)) for each in sources if not _has_bytecode(each) and _is_for_us(each)]


def _has_bytecode(source: Path) -> bool:
    """Return whether a file's bytecode lies beside it and is of this version of it."""
    written = source.stat()
    for compiled in (source.parent / "__pycache__").glob(f"{source.stem}.cpython-*.pyc"):
        with compiled.open("rb") as file:
            if file.read(16)[8:] == struct.pack("<II", int(written.st_mtime), written.st_size):
                return True
    return False


def _is_for_us(source: Path) -> bool:
    """Return whether a file is of a Python that is not newer: some packages carry what they never import."""
    try:
        compile(source.read_bytes(), str(source), "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True
