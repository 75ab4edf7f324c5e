"""The command line: each command reads its words, calls one room below and prints.

    fedgc demo      a federation on this machine, with a slow device and one that dies

What the caller got wrong is one line on standard error and exit code 2; what another program or the disk
did not do is one line and exit code 1. `--debug` shows where it came from. Nothing heavy is imported
before a command needs it, so that help is there at once.

May import: everything below.
"""

import sys

from fedgc.cli.commands import app
from fedgc.errors import FedgcError, Unusable

USAGE = 2


def main() -> None:
    """Run the command line; the only place that turns our errors into exit codes."""
    debug = "--debug" in sys.argv
    if debug:
        sys.argv.remove("--debug")
    try:
        app()
    except FedgcError as error:
        if debug:
            raise
        sys.stderr.write(f"fedgc: {error}\n")
        sys.exit(USAGE if isinstance(error, Unusable) else 1)
