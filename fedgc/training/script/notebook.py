"""Runs a notebook as `jupyter execute` does, with a kernel that listens on Unix sockets in a private folder.

Jupyter chooses the TCP ports of a kernel before the kernel binds them, so kernels that start at the same time
on one machine may be given the same ones. `jupyter execute` passes no settings on to the kernel's manager.

It is run by path, in the place of `jupyter execute` and with its options.
"""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from nbclient import NotebookClient, cli
from traitlets.config import Config

from fedgc.processes.temporary_folder import place_of_sockets


def main() -> None:
    """Execute the notebooks that the command line names."""
    with TemporaryDirectory(prefix="fedgc-", dir=place_of_sockets()) as folder:
        manager = {"transport": "ipc", "connection_file": str(Path(folder) / "k.json")}  # sockets: k-ipc-1
        vars(cli)["NotebookClient"] = partial(NotebookClient, config=Config(KernelManager=manager))
        cli.NbClientApp.launch_instance()


if __name__ == "__main__":
    main()
