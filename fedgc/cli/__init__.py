"""The command line: each command reads its words, calls one room below and prints.

    fedgc demo      a federation on this machine, with a slow client and one that dies
    fedgc new NAME  an app of one's own
    fedgc run       trains, on this machine or on a SuperLink

What the caller got wrong is one line on standard error and exit code 2; what another program, the network
or the disk did not do is one line and exit code 1; Ctrl-C is exit code 130. `--debug` shows where an error
came from. Nothing heavy is imported before a command needs it, so that help is there at once.
"""

import sys
from collections.abc import Callable
from typing import Any, Final

import click

from fedgc.errors import FedgcError, Unusable

FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130  # 128 + SIGINT, as shells say it


def main() -> None:
    """Run the command line."""
    run_program(_commands)


def run_program(load: Callable[[], Callable[..., Any]]) -> None:
    """Run a typer app; the only place that turns errors into exit codes. Loading may be interrupted."""
    debug = "--debug" in sys.argv
    if debug:
        sys.argv.remove("--debug")
    try:
        code = load()(standalone_mode=False)
    except KeyboardInterrupt:
        code = _told(click.exceptions.Abort())
    except Exception as error:
        if debug:
            raise
        code = _told(error)
    sys.exit(code if isinstance(code, int) else 0)


def _commands() -> Callable[..., Any]:
    from fedgc.cli.commands import app

    return app


def _told(error: Exception) -> int:
    """Say in one line what went wrong, and return the exit code that it means.

    A program's own fault is told in a line as well: where it came from is what --debug is for.
    """
    match error:
        case click.exceptions.NoArgsIsHelpError():
            error.show()
            return USAGE
        case click.exceptions.Abort():
            sys.stderr.write("fedgc: interrupted\n")
            return INTERRUPTED
        case click.ClickException():
            said, code = error.format_message(), error.exit_code
        case FedgcError():
            said, code = str(error), USAGE if isinstance(error, Unusable) else FAILED
        case _:
            said = f"a fault of fedgc itself: {type(error).__name__}: {error}; --debug shows where"
            code = FAILED
    sys.stderr.write(f"fedgc: {' '.join(said.split())}\n")
    return code
