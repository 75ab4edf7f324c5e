"""A run to be killed: it appends rounds without end and reports each that is on the disk.

Started by test_kills.py as a program: writer.py STORE RUN FIRST_ROUND CLIENTS."""

import sys
from pathlib import Path

from fedgc.history import ClientRow, RoundRow
from fedgc.store.database import Store
from fedgc.store.records import Appended, Audited, Begun
from fedgc.store.writer import Keeper


def main() -> None:
    url, run, first, clients = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    keeper = Keeper(lambda: Store.open(url), Path(f"{url}.{run}.aside"), sys.stderr.write)
    keeper.put(Begun(1e9, run, {"task": "digits"}))
    number = first
    while True:
        rows = tuple(ClientRow(f"{run}-{each}", 4, 4, 16, 1.0, 0.1, 0.01) for each in range(clients))
        row = RoundRow(
            number,
            number,
            0.0,
            1.0,
            0.5,
            "synced",
            8,
            8,
            (),
            2,
            1,
            2,
            None,
            None,
            None,
            64,
            0,
            0,
            0,
            0,
            "all",
            rows,
        )
        keeper.put(Appended(1e9 + number, run, row))
        keeper.put(Audited(1e9 + number, "round", run, str(number)))
        if not keeper.flush(60.0):
            return
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
        number += 1


if __name__ == "__main__":
    main()
