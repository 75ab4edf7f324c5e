"""The command line: each command parses its arguments, calls another module and prints.

    fedgc demo      a federation on this machine, with a slow client and one that dies
    fedgc new NAME  an app of one's own
    fedgc run       trains, on this machine or on a SuperLink

An error of the caller is one line on standard error and exit code 2; a failure of another program, the
network or the disk is one line and exit code 1; Ctrl-C is exit code 130. `--debug` prints the traceback, and
has the processes that the command starts log those of unexpected errors (`fedgc.guards`). A command imports
heavy modules only when it needs them, so that help is fast.
"""

import os
import sys
from collections.abc import Callable
from typing import Any, Final

from fedgc.errors import FedgcError, Unusable, text_of, words_of
from fedgc.guards import DEBUG

FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130  # 128 + SIGINT, as in shells


def main() -> None:
    """Run the command line."""
    run_program(_commands)


def run_program(load: Callable[[], Callable[..., Any]]) -> None:
    """Run a typer app; the only place that turns errors into exit codes. Ctrl-C during imports is handled."""
    if sys.stdout is None:
        sys.exit("fedgc: standard output is closed, needed one to write to")
    debug = "--debug" in sys.argv
    if debug:
        sys.argv.remove("--debug")
        os.environ[DEBUG] = "1"
    try:
        code = load()(standalone_mode=False)
        if code == INTERRUPTED:  # typer has caught a KeyboardInterrupt
            code = _interrupted()
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = _interrupted()
    except Exception as error:
        if debug:
            raise
        code = _told(error)
        _flush()
    sys.exit(code if isinstance(code, int) else 0)


def _flush() -> None:
    """Write what is left, or discard it where it cannot be written: the exit would fail at it."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _commands() -> Callable[..., Any]:
    from fedgc.cli.commands import app

    return app


def _interrupted() -> int:
    sys.stderr.write("fedgc: interrupted\n")
    return INTERRUPTED


def _told(error: Exception) -> int:
    """Print an error in one line, and return its exit code.

    A bug is printed in one line too: --debug shows its traceback.
    """
    import click

    match error:
        case click.exceptions.NoArgsIsHelpError():
            error.show()
            return USAGE
        case click.exceptions.Abort():
            return _interrupted()
        case click.ClickException():
            message, code = error.format_message(), error.exit_code
        case BrokenPipeError():  # as of `fedgc status | head`
            return FAILED
        case OSError():
            message, code = text_of(error), FAILED
        case FedgcError():
            message, code = str(error), USAGE if isinstance(error, Unusable) else FAILED
        case _:
            message = f"a bug in fedgc: {words_of(error)}; --debug shows the traceback"
            code = FAILED
    sys.stderr.write(f"fedgc: {' '.join(message.split())}\n")
    return code
