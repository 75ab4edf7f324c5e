"""`make docker-arm64`: check that every package of the images has a wheel for aarch64.

pip resolves the versions of constraints.txt for a Debian bookworm of 64-bit ARM (glibc 2.36, CPython 3.11),
wheels only, without installing. It lists what it finds; for a missing one it fails with pip's error.
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GLIBC = range(17, 37)  # manylinux_2_17 to manylinux_2_36


def main() -> int:
    """Resolve and list the wheels."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needs = [*project["dependencies"], *project["optional-dependencies"]["postgresql"]]
    platforms = [f"manylinux_2_{minor}_aarch64" for minor in reversed(GLIBC)] + ["manylinux2014_aarch64"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        words = ["--dry-run", "--quiet", "--ignore-installed", "--target", folder, "--only-binary", ":all:"]
        words += ["--python-version", "3.11", "--implementation", "cp", "--report", str(report)]
        words += [word for platform in platforms for word in ("--platform", platform)]
        words += ["--constraint", str(ROOT / "constraints.txt"), *needs]
        done = subprocess.run([sys.executable, "-m", "pip", "install", *words], check=False)
        if done.returncode:
            return done.returncode
        found = json.loads(report.read_text())["install"]
    names = sorted(each["download_info"]["url"].rsplit("/", 1)[1] for each in found)
    binary = [name for name in names if not name.endswith("none-any.whl")]
    print("\n".join(binary))
    print(f"{len(binary)} binary wheels for aarch64, {len(names) - len(binary)} for any platform")
    return 0 if all("aarch64" in name for name in binary) else 1


sys.exit(main())
