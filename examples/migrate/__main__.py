"""Scripts and an app of other frameworks, before and after their move to fedgc."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from examples.federation import Federation, Result, main, say
from examples.migrate.changes import FOLDER, migrated
from fedgc.deploy.app_folder import app_in
from fedgc.errors import EdgeFailed

CLIENTS = 2
ACCURACY = re.compile(r"accuracy ([0-9.]+)")
BEFORE_S = 300.0
LAUNCHERS = {"nvflare": "", "torchrun": "torchrun --nproc-per-node 2 ", "huggingface": ""}
APPS = ("flower", "flower-task")
ALONE = ("torchrun", "huggingface")  # scripts that can run before: NVFlare is not installed
SETTINGS = {"rounds": 10, "local-steps": 20, "gate.name": "every", "links.grace-s": 2.0}
BEFORE = {f"{name}_before": (0.85, 1.0) for name in ("flower", *ALONE)}
AFTER = {f"{name}_after": (0.85, 1.0) for name in (*APPS, *LAUNCHERS)}
BANDS = {**BEFORE, **AFTER}


def example(folder: Path) -> Result:
    """Run each before and after its change; figures are accuracies."""
    figures: dict[str, float] = {}
    with Federation(folder, CLIENTS) as federation:
        say("flower, before")
        figures["flower_before"] = stock(federation, folder)
        for name in APPS:
            say(f"{name}, after")
            figures[f"{name}_after"] = app(federation, name, folder)
        for name, launcher in LAUNCHERS.items():
            if name in ALONE:
                say(f"{name}, before")
                figures[f"{name}_before"] = alone(FOLDER / name / "train.py", launcher)
            say(f"{name}, after")
            script = f"{launcher}{migrated(name, folder) / 'train.py'}"
            federation.complete(name, {**SETTINGS, "script": script})
            figures[f"{name}_after"] = federation.last(name, "accuracy")
    return Result(figures)


def stock(federation: Federation, folder: Path) -> float:
    """Run the unchanged app by Flower alone."""
    copy = shutil.copytree(FOLDER / "flower", folder / "before", ignore=shutil.ignore_patterns("__pycache__"))
    run = federation.superlink.submit(copy)
    federation.finish(run)
    return last_accuracy(federation.log(f"run-{run}").read_text(errors="replace"))


def app(federation: Federation, name: str, folder: Path) -> float:
    """Run the changed app."""
    changed = app_in(migrated(name, folder))
    if changed is None:
        raise EdgeFailed(f"{name}: saw no app after the change, needed one")
    federation.finish(federation.submit({**changed.settings, "run": name}, changed))
    return federation.last(name, "accuracy")


def alone(script: Path, launcher: str) -> float:
    """Run an unchanged script by itself."""
    words = [*launcher.split(), str(script)] if launcher else [sys.executable, str(script)]
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(  # noqa: S603  our own command line
        words,
        env={**os.environ, "PATH": programs, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=BEFORE_S,
        check=False,
    )
    if done.returncode:
        raise EdgeFailed(f"{script.parent.name}, before: {done.stderr.strip().splitlines()[-1]}")
    return last_accuracy(done.stdout)


def last_accuracy(text: str) -> float:
    """Return the last accuracy that a program has printed."""
    return float(ACCURACY.findall(text)[-1])


if __name__ == "__main__":
    main(example, BANDS, "migrate")
