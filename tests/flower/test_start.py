"""Test the start of an app's process: imports without garbage collection."""

import subprocess
import sys

CODE = """
import gc, fedgc
seen = []
gc.callbacks.append(lambda phase, about: seen.append(phase))
fedgc.client_app
print(seen, gc.isenabled(), gc.get_freeze_count() > len(gc.get_objects()))
gc.collect()
print(seen)
"""


def test_app_import_runs_no_garbage_collection():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[:2] == ["[] True True", "['start', 'stop']"], done.stderr
