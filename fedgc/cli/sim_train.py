"""`fedgc sim --train`: train a task on simulated clients, by the code that serves real ones."""

import hashlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any, Final

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from fedgc.cli.image_files import drawable, keep
from fedgc.cli.signals import after_ctrl_c, like_ctrl_c
from fedgc.cli.sim import Wanted, finite
from fedgc.cli.view import megabytes, terminal
from fedgc.config import RunConfig
from fedgc.deploy.app_folder import Setting
from fedgc.errors import BadSetting, BadTask, EdgeFailed, Unusable
from fedgc.history import BestModel
from fedgc.messages import SUMMED
from fedgc.processes.available import available_cores
from fedgc.sim import Request
from fedgc.sim.checkpoint import Checkpoint
from fedgc.sim.checkpoint_file import reading
from fedgc.sim.early_stop import EarlyStop
from fedgc.sim.masks import Masks, unmasked
from fedgc.sim.simulate import MEGABYTE
from fedgc.sim.sweep_file import must_be_simulated
from fedgc.sim.training import Job, Point, Trained, train
from fedgc.store.descriptor import read_descriptor
from fedgc.training import CommonModel
from fedgc.training.tasks import named
from fedgc.web.markup import element, line_chart, table
from fedgc.web.report_page import page_of

SHOWN: Final = 20  # rounds of the table on a terminal
COLUMNS: Final = ("round", "outcome", "time", "clients", "steps counted", "loss", "sent", "figures")
FILES: Final = ("trace", "links")  # of a request
BY_OPTIONS: Final = {"task": "--train alone", "min-clients": "--clients"}


@dataclass(frozen=True, slots=True)
class Training:
    """What to train, on which clients; the request gives their speeds, links and failures."""

    task: str
    request: Request
    settings: Mapping[str, Setting]
    partition: str | None = None
    processes: int | None = 1  # None: one for each core, and one for a stack
    ray: str = ""
    stack: int = 1

    def __post_init__(self) -> None:
        if self.processes is not None and self.processes < 1:
            raise BadSetting(f"--processes: saw {self.processes}, needed at least 1")
        if self.stack > 1 and ((self.processes or 1) > 1 or self.ray):
            seen = "--ray" if self.ray else f"--processes {self.processes}"
            raise BadSetting(f"--stack {self.stack}: saw {seen} beside it, needed one process")

    def options(self) -> dict[str, object]:
        """Return what a checkpoint keeps of this, as JSON can hold it."""
        files = {name: getattr(self.request, name) for name in FILES}
        request = asdict(self.request) | {name: path and str(path.resolve()) for name, path in files.items()}
        kept = {"task": self.task, "settings": dict(self.settings), "partition": self.partition}
        return {**kept, "stack": self.stack, "request": request}

    @classmethod
    def again(cls, options: Mapping[str, Any], processes: int | None, ray: str) -> "Training":
        """Return the training of a checkpoint, on other processes."""
        request = dict(options["request"])
        request |= {name: request[name] and Path(request[name]) for name in FILES}
        made, stack = Request(**request), int(options.get("stack", 1))
        return cls(options["task"], made, options["settings"], options["partition"], processes, ray, stack)

    def config(self, clients: int) -> RunConfig:
        """Return the settings of the run."""
        mine: dict[str, Setting] = {
            "rounds": self.request.rounds,
            "seed": self.request.seed,
            "data.chunks": clients,
            "client.threads": 1,  # of a process; small models are several times slower with more
        }
        if self.partition is not None and "data.partition" in self.settings:
            seen = self.settings["data.partition"]
            raise BadSetting(f"--partition: saw the setting data.partition = {seen} beside it, needed one")
        mine |= {} if self.partition is None else {"data.partition": self.partition}
        for name in BY_OPTIONS & self.settings.keys():
            raise BadSetting(f"setting {name}: saw it with --train, needed {BY_OPTIONS[name]}")
        table = {**mine, **self.settings, "task": self.task, "min-clients": clients}
        config = RunConfig.read(table)
        must_be_simulated(config)
        return config

    def job(self) -> tuple[Job, float]:
        """Return the training to simulate, and the megabytes of an update."""
        if self.task.endswith(".py"):
            raise BadTask(
                f"--train: saw {self.task}, needed a task, module:attribute: scripts are not simulated"
            )
        clients = self.request.scenario()[0].clients
        config = self.config(clients)
        make = partial(named, self.task, config)
        try:
            task = make()
        except BadTask as error:
            if clients == 1 or "data.chunks" in self.settings or "data.chunks" not in str(error):
                raise
            raise BadTask(f"{error}; it is --clients unless --set gives it") from error
        owned = config.work == "local" and config.placement == "private"
        if owned and len(task.sizes()) < clients:
            raise BadTask(
                f"task {self.task}: saw {len(task.sizes())} chunks, needed one for each of {clients} clients"
            )
        size, masks = CommonModel(task, config).size, None
        if config.secrecy == "masked":
            masks = Masks.of(read_descriptor(Path(config.federation)).federation, clients, size)
            config = unmasked(config)
        request = replace(
            self.request,
            clients=clients,
            rounds=config.rounds,
            seed=config.seed,
            model_mb=4 * size / MEGABYTE,
            upload_slots=self.request.upload_slots or config.slots_for(config.update_bytes(size)) or 0,
        )
        most = self.processes or (1 if self.stack > 1 else available_cores())
        processes = min(most, clients) if config.work == "local" else 1
        job = Job(
            task, config, request.scenario(), request.line, make=make, workers=processes, owned=owned,
            keeps_clients=False, ray=self.ray, grace_s=config.grace_s, stack=self.stack,
        )  # fmt: skip
        if masks is None:
            return job, request.model_mb
        job = replace(job, scenario=masks.scenario(job.scenario), line=masks.line(job.line))
        return job, request.model_mb * masks.share


@dataclass(frozen=True, slots=True)
class RoundShown:
    """One round in the output; `seconds` and `up_mb` are sums since the beginning of the run."""

    round: int
    outcome: str
    seconds: float
    clients: int  # in the sum
    steps: int
    counted: int
    up_mb: float
    loss: float | None
    metrics: Mapping[str, float]


def begin_training(training: Training, wanted: Wanted, path: Path | None) -> None:
    """Train from the beginning, with a checkpoint in a new file if there is a path."""
    drawable(path)
    if path is not None and path.exists():
        raise Unusable(f"--checkpoint {path}: saw a file, needed a new name, or --resume {path}")
    run_training(training, wanted, None if path is None else Checkpoint(path, training.options()))


def resume_training(path: Path, wanted: Wanted, processes: int | None, ray: str) -> None:
    """Go on from a checkpoint that `run_training` has written."""
    with closing(Checkpoint(path)) as checkpoint:
        about = checkpoint.about()
        if about is None or not about.options:
            raise Unusable(f"--resume {path}: saw no such checkpoint, needed one of fedgc sim --checkpoint")
        checkpoint.options = about.options
        with reading(path):
            training = Training.again(about.options, processes, ray)
        run_training(training, wanted, checkpoint)


def run_training(training: Training, wanted: Wanted, checkpoint: Checkpoint | None) -> None:
    """Train, show the course of the run, and write the page."""
    drawable(wanted.html)
    sys.path.insert(0, str(Path.cwd()))  # for tasks in the user's folder, as in the run itself
    job, model_mb = training.job()
    rounds, begun, stop = list[RoundShown](), time.monotonic(), EarlyStop(job.config)

    chunk_steps = job.config.round_steps if job.config.work == "coded" else 1

    def heard(point: Point) -> None:
        rounds.append(_shown(point, model_mb, chunk_steps))

    console = Console(stderr=True)
    bar = Progress(console=console, transient=True, disable=not console.is_terminal)
    with after_ctrl_c(lambda: _goes_on(checkpoint)), like_ctrl_c(), bar:
        shown = bar.add_task("rounds", total=job.config.rounds)
        trained = train(
            job, heard, lambda done: bar.update(shown, completed=done), until=stop, checkpoint=checkpoint
        )
    wall_s = time.monotonic() - begun
    if job.config.best and stop.best is None and not trained.ended:
        seen = ", ".join(sorted({name for each in rounds for name in each.metrics})) or "none"
        raise EdgeFailed(f"setting validate.best: needed the figure {job.config.best}, saw figures {seen}")
    summary = _summary(training, job, rounds, trained, stop) | {"wall_s": round(wall_s, 3)}
    if wanted.html is not None:
        keep(wanted.html, _page(summary, rounds).encode())
    if wanted.as_json:
        found = {**summary, "rounds": [{**asdict(each), **_figures(each)} for each in rounds]}
        sys.stdout.write(json.dumps({"training": found}, allow_nan=False) + "\n")
    else:
        terminal().print(_table(summary, rounds))
    if trained.ended:
        seen = f"its simulation ended after {len(rounds)} of {job.config.rounds} rounds"
        raise EdgeFailed(f"{seen}: {trained.ended}")


def _goes_on(checkpoint: Checkpoint | None) -> str:
    if checkpoint is None:
        return "nothing is kept, as it was started without --checkpoint"
    if not checkpoint.rounds:
        return ""
    return f"`fedgc sim --resume {quote(str(checkpoint.path))}` goes on after round {checkpoint.rounds}"


def _shown(point: Point, model_mb: float, chunk_steps: int) -> RoundShown:
    """Return a round; rows of coded work count chunks, of so many steps each."""
    row, clients = point.row, point.row.clients
    return RoundShown(
        row.round,
        row.outcome,
        point.seconds,
        sum(each.counted > 0 for each in clients),
        sum(each.steps for each in clients),
        chunk_steps * sum(each.counted for each in clients),
        point.sent * model_mb,
        row.loss,
        dict(point.metrics) if row.outcome in SUMMED else {},
    )


def _summary(
    training: Training, job: Job, rounds: Sequence[RoundShown], trained: Trained, stop: EarlyStop
) -> dict[str, object]:
    last = rounds[-1]
    return {
        "task": training.task,
        "clients": job.scenario[0].clients,
        "partition": job.config.partition,
        "seconds": last.seconds,
        "up_mb": last.up_mb,
        "steps": sum(each.steps for each in rounds),
        "metrics": next((_finite(each.metrics) for each in reversed(rounds) if each.metrics), {}),
        "model": hashlib.sha256(trained.model.tobytes()).hexdigest()[:16],
        "best": None if stop.best is None else asdict(stop.best),
        "ended": trained.ended or trained.spent or stop.why,
    }


def _figures(each: RoundShown) -> dict[str, object]:
    return {"loss": finite(each.loss), "metrics": _finite(each.metrics)}


def _finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    return {name: finite(value) for name, value in metrics.items()}


def _cells(each: RoundShown) -> tuple[str, ...]:
    figures = ", ".join(f"{name} {value:.4g}" for name, value in each.metrics.items())
    loss = "" if each.loss is None else f"{each.loss:.4g}"
    return (
        str(each.round), each.outcome, f"{each.seconds:.1f} s", str(each.clients), str(each.counted), loss,
        megabytes(MEGABYTE * each.up_mb), figures,
    )  # fmt: skip


def _table(summary: Mapping[str, object], rounds: Sequence[RoundShown]) -> Table:
    made = Table(title=_title(summary), caption=_caption(summary))
    for at, column in enumerate(COLUMNS):
        last = at == len(COLUMNS) - 1  # many figures take several lines, and no room of other columns
        made.add_column(column, justify="left" if last or at == 1 else "right", no_wrap=not last)
    every = -(-len(rounds) // SHOWN)
    for each in rounds[::-1][::every][::-1]:
        made.add_row(*_cells(each))
    return made


def _title(summary: Mapping[str, object]) -> str:
    return f"{summary['task']} on {summary['clients']} simulated clients, data {summary['partition']}"


def _caption(summary: Mapping[str, Any]) -> str:
    done = f"{summary['steps']} local steps in {summary['wall_s']:.1f} s on this machine"
    ended = f"; ended early: {summary['ended']}" if summary["ended"] else ""
    best = f"; best model: {BestModel(**summary['best'])}" if summary["best"] and not ended else ""
    return f"{done}, model {summary['model']}{best}{ended}"


def _page(summary: Mapping[str, object], rounds: Sequence[RoundShown]) -> str:
    names = dict.fromkeys(name for each in rounds for name in each.metrics)
    charts = [
        line_chart(
            f"{name} over {of}",
            [(getattr(each, at), each.metrics[name]) for each in rounds if name in each.metrics],
            of,
        )
        for name in names
        for of, at in (("simulated seconds", "seconds"), ("megabytes sent", "up_mb"))
    ]
    losses = [(each.seconds, each.loss) for each in rounds if each.loss is not None]
    loss = line_chart("training loss over simulated seconds", losses, "simulated seconds")
    parts = (
        element("h1", _title(summary)),
        element("p", _caption(summary)),
        element("div", *charts, loss, class_="charts"),
        table(COLUMNS, map(_cells, rounds)),
    )
    return page_of(_title(summary), *parts)
