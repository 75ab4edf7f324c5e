"""Play hostile events and decode mutated inputs: python -m tests.fuzz --events 1000000 --inputs 1000000."""

import argparse
import logging
import random
import sys
import tempfile
import time
import warnings
from pathlib import Path

from tests.fuzz.decoders import decoders
from tests.fuzz.decoding import decode
from tests.fuzz.games import games, play

SHOWN = 200  # games between two lines of progress
INPUTS = 50_000  # the same for inputs


def main() -> None:
    """Play and decode as much as asked for; a failure names the seed that repeats it."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--events", type=int, default=0, help="hostile events to play")
    parser.add_argument("--inputs", type=int, default=0, help="mutated inputs to decode")
    parser.add_argument("--seed", type=int, help="the first one; any, if it is not given")
    parser.add_argument("--game", type=int, help="play the game of this seed alone")
    parser.add_argument("--input", type=int, help="decode the input of this seed alone")
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")  # numpy's, of the numbers in damaged files
    seed = random.randrange(2**31) if asked.seed is None else asked.seed  # noqa: S311
    if asked.game is not None:
        tell(f"game {asked.game}: {play(asked.game)} events, no failure")
    elif asked.input is not None:
        decode_inputs(asked.input, 1)
    else:
        play_games(seed, asked.events)
        decode_inputs(seed, asked.inputs)


def play_games(seed: int, events: int) -> None:
    played, began = 0, time.monotonic()
    for number, count in enumerate(games(seed, events), start=1):
        played += count
        if number % SHOWN == 0:
            tell(f"{played} events in {number} games, {time.monotonic() - began:.0f} s")
    tell(f"{played} events from seed {seed}, no failure")


def decode_inputs(seed: int, count: int) -> None:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, decoders(Path(folder)) as every:
        for number in range(1, count + 1):
            decode(every, seed + number - 1)
            if number % INPUTS == 0:
                tell(f"{number} inputs, {time.monotonic() - began:.0f} s")
    tell(f"{count} inputs from seed {seed}, no failure")


def tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
