"""SIGTERM ends a fork at once, however early it comes, and is handled in the process itself."""

import subprocess
import sys

FORKS = 200

SCRIPT = """
import os, signal, sys, threading, time
from fedgc.training.loop.forks import handle_sigterm

calls = []
handle_sigterm(lambda *_: calls.append(os.getpid()))

def how_forks_end():
    ends = set()
    for _ in range(int(sys.argv[1])):
        child = os.fork()
        if child == 0:
            time.sleep(5)
            os._exit(3)
        os.kill(child, signal.SIGTERM)
        ends.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return ends

print(how_forks_end())
thread = threading.Thread(target=lambda: print(how_forks_end()))
thread.start()
thread.join()
print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
os.kill(os.getpid(), signal.SIGTERM)
print(calls == [os.getpid()])
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os._exit(signal.getsignal(signal.SIGTERM) != signal.SIG_IGN)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_sigterm_ends_fork_at_once():
    seen = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(FORKS)], capture_output=True, text=True, timeout=60, check=True
    )
    ended_by_sigterm = "{-15}"
    assert seen.stdout.splitlines() == [ended_by_sigterm, ended_by_sigterm, "set()", "True", "0"]
