"""Images without an engine: a Debian base made by debootstrap, our Dockerfiles built on it by buildah.

chroot isolation needs neither an engine nor control groups. Base and layers are kept between calls in the
given folder, so that a second call builds only what has changed.
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

    def run(self, *words: str) -> str:
        """Run buildah and return its output."""
        done = subprocess.run(self.buildah(*words), capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"buildah {words[0]}: {done.stderr.strip()[-2000:]}")
        return done.stdout.strip()

    def has(self, image: str) -> bool:
        """Return whether an image exists."""
        return image in self.run("images", "--format", "{{.Name}}:{{.Tag}}").split()

    def make_base(self) -> None:
        """Make the base image that replaces `debian:bookworm-slim`, if it is missing."""
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
        made = self.run("from", "scratch")
        self.run("add", "-q", made, str(root), "/")
        self.run("commit", "-q", "--rm", made, BASE)
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
        self.run(*words, "-f", str(self.repository / dockerfile), "-t", image, str(self.repository))

    def container(self, image: str) -> str:
        """Return a new container of an image."""
        return self.run("from", "--pull-never", image)

    def mounted(self, container: str) -> Path:
        """Return the folder of a container's root."""
        return Path(self.run("mount", container))

    def clear(self) -> None:
        """Remove every container, also those of an interrupted build."""
        subprocess.run(self.buildah("rm", "--all"), capture_output=True, check=False)

    def remove(self, containers: Iterable[str]) -> None:
        """Remove containers and their content."""
        for each in containers:
            subprocess.run(self.buildah("rm", each), capture_output=True, check=False)


def megabytes(folders: Iterable[Path]) -> float:
    """Return the size of these folders on disk."""
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
    """Return the modules of an image without bytecode, which the read-only image compiles at every start."""
    tops = [*root.glob("usr/lib/python3*"), *root.glob("opt/fedgc/lib/python3*/site-packages")]
    sources = [each for top in tops for each in top.rglob("*.py") if not each.is_symlink()]
    return [str(each.relative_to(root)) for each in sources if not _has_bytecode(each) and _is_for_us(each)]


def _has_bytecode(source: Path) -> bool:
    """Return whether a file has bytecode of its version."""
    written = source.stat()
    for compiled in (source.parent / "__pycache__").glob(f"{source.stem}.cpython-*.pyc"):
        with compiled.open("rb") as file:
            if file.read(16)[8:] == struct.pack("<II", int(written.st_mtime), written.st_size):
                return True
    return False


def _is_for_us(source: Path) -> bool:
    """Return whether a file's Python is not newer: some packages include modules that they never import."""
    try:
        compile(source.read_bytes(), str(source), "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True
