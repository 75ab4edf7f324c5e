"""A run for TensorBoard: one event file, with a step for each round at the round's end time."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from fedgc.errors import Unusable, system_errors
from fedgc.export.rows import measures
from fedgc.store.views import Round, Run


def write_events(
    run: Run, rounds: Iterable[Round], folder: Path, scored: Mapping[int, Mapping[str, float]] | None = None
) -> Path:
    """Write a run into its own folder below `folder`, and return that; `scored` are figures of clients."""
    of_clients = scored or {}
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise Unusable(
            f"export tensorboard: saw no tensorboard ({error}), needed it: pip install tensorboard"
        ) from error
    own = folder / run.run
    if own.exists() and any(own.iterdir()):
        raise Unusable(f"{own}: saw a run there, needed a folder without it")
    with system_errors(f"{own}", "to write it"):
        writer = EventFileWriter(str(own))

        def write(step: int, at: float, found: Mapping[str, float]) -> None:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in found.items()]
            writer.add_event(Event(wall_time=at, step=step, summary=Summary(value=values)))

        if 0 in of_clients:
            write(0, run.started, of_clients[0])
        for each in rounds:
            row = each.row
            ended = row.started + row.working_s + row.collecting_s
            write(row.round, ended, {**measures(each), **of_clients.get(row.round, {})})
        writer.close()
    return own
