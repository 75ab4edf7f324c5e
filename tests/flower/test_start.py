"""What an app's process does before it can say a word: imports, and no walks through what they have made."""

import subprocess
import sys

CODE = """
import gc, fedgc.flower
seen = []
gc.callbacks.append(lambda phase, about: seen.append(phase))
fedgc.flower.client_app
print(seen, gc.isenabled(), gc.get_freeze_count() > len(gc.get_objects()))
gc.collect()
print(seen)
"""


def test_no_garbage_is_looked_for_while_an_app_is_imported_nor_later_in_what_was():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[:2] == ["[] True True", "['start', 'stop']"], done.stderr
