"""Test which reason a server records when a signal ends its run."""

import os
import subprocess
import sys

from fedgc.flower.signals import BY_USER, why_stopped
from fedgc.store.liveness import SUPERLINK_ENDED


def test_end_of_superlink_is_not_called_stop_by_user():
    """Flower raises SIGINT in a ServerApp for both."""
    executor = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    words = ["flwr-serverapp", "--token", "x", "--parent-pid", str(executor.pid), "--insecure"]
    assert why_stopped("SIGINT", words) == BY_USER
    executor.communicate()
    assert why_stopped("SIGINT", words) == SUPERLINK_ENDED
    assert why_stopped("SIGINT", words[:3]) == BY_USER, "a ServerApp that was started by hand"
    assert why_stopped("SIGINT", [*words[:4], str(os.getpid())]) == BY_USER
