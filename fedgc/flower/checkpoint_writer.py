"""Writes the checkpoints of a run: each once its round is in the history, and that of the best model."""

from functools import partial
from logging import WARNING, Logger

from fedgc.errors import FedgcError
from fedgc.flower.background import BackgroundQueue
from fedgc.flower.job import Job, Save
from fedgc.store.checkpoint import Checkpoint


class CheckpointWriter:
    """Writes in the background, unless a run must not go on before its checkpoint is written."""

    def __init__(self, job: Job, background: BackgroundQueue, log: Logger) -> None:
        self._job, self._background, self._log = job, background, log
        self.due: Checkpoint | None = None  # to be written once its round is in the history

    def write_due(self) -> None:
        """Write the due one: in the background; at once in a masked or private run, and if it is the first.

        A site masks no second update from a model whose sum was revealed, so a masked run can only resume
        from its latest checkpoint. A run that ends before its first one has made one model at most. With
        privacy the checkpoint is written before a client gets the model: what is spent is never forgotten.
        """
        due, self.due = self.due, None
        save = self._job.save
        if due is None or save is None:
            return
        if due.privacy:
            save(due)
        elif self._job.federation is not None or due.version == 1:
            self._write(save, due)
        else:
            self._background.submit("checkpoint", due.round, partial(self._write, save, due))

    def write_best(self, best: Checkpoint) -> None:
        """Write the checkpoint of the best model, in the background."""
        if self._job.pin is not None:
            self._background.submit("best checkpoint", best.round, partial(self._write, self._job.pin, best))

    def _write(self, save: Save, checkpoint: Checkpoint) -> None:
        try:
            save(checkpoint)
        except FedgcError as error:
            self._log.log(WARNING, "round %d: %s", checkpoint.round, error)
