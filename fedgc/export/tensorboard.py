"""A run for TensorBoard: one event file, a step for each round, at the time at which the round ended."""

from collections.abc import Iterable
from pathlib import Path

from fedgc.errors import EdgeFailed, Unusable
from fedgc.export.rows import measures
from fedgc.store.views import Round, Run


def write_events(run: Run, rounds: Iterable[Round], folder: Path) -> Path:
    """Write a run into a folder of its own below `folder`, and return that."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise Unusable(
            f"export tensorboard: saw no tensorboard ({error}), needed it: pip install 'fedgc[tensorboard]'"
        ) from error
    own = folder / run.run
    if own.exists() and any(own.iterdir()):
        raise Unusable(f"{own}: saw a run there, needed a folder without it")
    try:
        writer = EventFileWriter(str(own))
        for each in rounds:
            row = each.row
            values = [Summary.Value(tag=name, simple_value=value) for name, value in measures(each).items()]
            ended = row.started + row.working_s + row.collecting_s
            writer.add_event(Event(wall_time=ended, step=row.round, summary=Summary(value=values)))
        writer.close()
    except OSError as error:
        raise EdgeFailed(f"{own}: {error.strerror or error}, needed to write it") from error
    return own
