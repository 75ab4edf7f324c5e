"""Play hostile events: python -m tests.fuzz --events 1000000 --seed 0."""

import argparse
import random
import sys
import time

from tests.fuzz.games import games, play

SHOWN = 200  # games between two lines of progress


def main() -> None:
    """Play as many events as asked for; a failure names the seed that repeats it."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--events", type=int, default=0, help="hostile events to play")
    parser.add_argument("--seed", type=int, help="of the first game; any, if it is not given")
    parser.add_argument("--game", type=int, help="play the game of this seed alone")
    asked = parser.parse_args()
    if asked.game is not None:
        tell(f"game {asked.game}: {play(asked.game)} events, no failure")
        return
    seed = random.randrange(2**31) if asked.seed is None else asked.seed  # noqa: S311
    play_games(seed, asked.events)


def play_games(seed: int, events: int) -> None:
    played, began = 0, time.monotonic()
    for number, count in enumerate(games(seed, events), start=1):
        played += count
        if number % SHOWN == 0:
            tell(f"{played} events in {number} games, {time.monotonic() - began:.0f} s")
    tell(f"{played} events from seed {seed}, no failure")


def tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
