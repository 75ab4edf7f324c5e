"""Does what srun does: forks `-n` ranks that run a Python file, after one import of torch.

srun.py -n 2 train.py --step-s 0.1
"""

import os
import runpy
import signal
import socket
import sys
from pathlib import Path

import torch.nn.parallel
import torch.utils.data  # noqa: F401  imported once, for all ranks


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def end_with_first(ranks: dict[int, int]) -> int:
    """Wait for all ranks; kill the others when one fails, as srun does with --kill-on-bad-exit."""
    worst = 0
    while ranks:
        pid, status = os.wait()
        ranks.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        if code and not worst:
            worst = code if code > 0 else 128 - code
            for other in ranks:
                os.kill(other, signal.SIGTERM)
    return worst


def main() -> None:
    count, *command = sys.argv[2:]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "SLURM_NTASKS": count}
    ranks: dict[int, int] = {}
    for rank in range(int(count)):
        pid = os.fork()
        if not pid:
            os.environ["SLURM_PROCID"] = str(rank)
            sys.argv = command
            sys.path.insert(0, str(Path.cwd()))
            runpy.run_path(command[0], run_name="__main__")
            return
        ranks[pid] = rank
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the ranks are in this process group and get it too
    sys.exit(end_with_first(ranks))


if __name__ == "__main__":
    main()
