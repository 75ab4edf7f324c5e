"""`fedgc run`: a run on a federation that is started for it on this machine, or a run that is resumed.

May import: flower.local, store, cli.
"""

import time
from collections.abc import Mapping
from datetime import UTC, datetime

from fedgc.cli import view
from fedgc.cli.follow import POLL_S, look, print_tables, show_on, why_incomplete
from fedgc.cli.settings import Setting
from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed, Unusable
from fedgc.flower.local import LocalFederation
from fedgc.store.database import Store


def run_here(devices: int, settings: Mapping[str, Setting], resume: str | None) -> None:
    """Run to the end and print the tables; Ctrl-C stops the run and leaves its checkpoint."""
    if devices < 1:
        raise Unusable(f"--devices: saw {devices}, needed at least 1")
    console = view.terminal()
    with Store.open() as store:
        config = _settings(store, devices, settings, resume)
        run = config.resume or config.run
        before = look(store, run).last
        console.print(f"run {run}, store {store.name}", soft_wrap=True)
        began = time.monotonic()
        with LocalFederation(devices) as federation, show_on(console, config.rounds) as show:
            flower_run = federation.submit(config.table())
            try:
                while federation.running(flower_run):
                    show.update(look(store, run), ())
                    time.sleep(POLL_S)
            except KeyboardInterrupt:
                federation.stop(flower_run)
                federation.wait(flower_run, 30.0)
            seen = look(store, run)
            show.update(seen, ())
            log = federation.log(f"run-{flower_run}").read_text(errors="replace")
        print_tables(console, seen, time.monotonic() - began)
    reason = why_incomplete(seen, log)
    if reason is not None:
        raise EdgeFailed(
            f"the run did not complete: {reason}; `fedgc run --resume {run}` goes on"
            if seen.last > before
            else f"the run did not complete: {reason}"
        )


def _settings(store: Store, devices: int, settings: Mapping[str, Setting], resume: str | None) -> RunConfig:
    """Return the settings: those given, over those the run had when it is resumed."""
    if resume is None:
        named = {"run": f"run-{datetime.now(UTC):%Y%m%d-%H%M%S}", "min-devices": devices}
        return RunConfig.read({**named, **settings})
    known = set(RunConfig().table())
    had = {name: value for name, value in store.run(resume).settings.items() if name in known}
    return RunConfig.read({**had, **settings, "resume": resume})
