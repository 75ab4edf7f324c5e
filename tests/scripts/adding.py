"""A training script whose result is known by counting: each step adds a number to one weight.

It has a command line and waits of its own, as real scripts have.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import torch

import fedgc


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--add", type=float, default=1.0, help="what a step adds")
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--delay-s", type=float, default=0.0, help="before it joins")
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--wait-at", type=int, default=-1, help="the step that waits for the file --until")
    parser.add_argument("--until", type=Path, default=None)
    parser.add_argument("--mark", type=Path, default=None, help="a file that is made at the step --mark-at")
    parser.add_argument("--mark-at", type=int, default=-1)
    parser.add_argument("--fault", default="", help="what goes wrong")
    parser.add_argument("--fault-at", type=int, default=3)
    parser.add_argument("--once", type=Path, default=None, help="a file that tells that it went wrong before")
    parser.add_argument("--sizes", type=int, nargs="+", default=[4])
    parser.add_argument("--private", nargs="*", default=[])
    parser.add_argument("--base", type=float, default=None, help="the value of a frozen parameter")
    return parser.parse_args()


def crash() -> None:
    raise ValueError("the data is gone")


def print_much() -> None:
    for _ in range(64):
        sys.stdout.write("x" * (1 << 20) + "\n")


FAULTS = {
    "raise": crash,
    "exit": lambda: sys.exit(3),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "term": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "print": print_much,
}


def waits(given: argparse.Namespace, done: int) -> None:
    """Take the time that the command line asks for."""
    time.sleep(given.step_s)
    if done == given.mark_at:
        given.mark.touch()
    if done == given.wait_at:
        while not given.until.exists():
            time.sleep(0.02)
        time.sleep(1.0)  # the others have reported by then, and the server asks


def goes_wrong(given: argparse.Namespace, done: int) -> bool:
    if not given.fault or done != given.fault_at or (given.once and given.once.exists()):
        return False
    if given.once:
        given.once.touch()
    return True


def main() -> None:
    given = parsed()
    time.sleep(given.delay_s)
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(size)) for size in given.sizes])
    if given.base is not None:
        model.register_parameter("base", torch.nn.Parameter(torch.tensor(given.base), requires_grad=False))
    fed = fedgc.join(model, samples=given.samples, private=given.private)
    done = 0
    while fed.step():
        done += 1
        with torch.no_grad():
            for each in filter(lambda each: each.requires_grad, model.parameters()):
                each.add_(given.add)
        waits(given, done)
        if goes_wrong(given, done):
            FAULTS.get(given.fault, fed.leave)()
        fed.log(loss=float(done))
    sys.stdout.write(f"ended after {done} steps\n")


if __name__ == "__main__":
    main()
