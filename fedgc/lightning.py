"""The Trainer of Lightning in a federation: a callback that steps, hands in and ends with the run.

Lightning comes as two packages, `lightning.pytorch` and `pytorch_lightning`, each of which accepts callbacks
of its own class only.
"""

import signal
import sys
import threading
from collections.abc import Mapping
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Self

from fedgc.training.loop.forks import handle_sigterm

if TYPE_CHECKING:
    from fedgc.training.loop.training_loop import TrainingLoop

PACKAGES: Final = ("lightning.pytorch", "pytorch_lightning")
ENDLESS: Final = -1  # Lightning's word for no limit


class Callback:
    """Lets a Lightning `Trainer` take part in a federation.

    A step is one optimizer step, whatever number of batches it accumulates. After each, the callback hands in
    the model if the round asks for it, and writes the next common model into the module. The Trainer's own
    logging, validation and checkpoints go on. In a federation the training ends with the run: `max_steps`,
    `max_epochs` and `min_epochs` hold outside only, where the callback counts steps for `fed.global_step`.

    Args:
        fed: What `fedgc.join(module)` returned.

    Example:
        fed = fedgc.join(module)
        trainer = Trainer(max_epochs=10, callbacks=[fedgc.lightning.Callback(fed)])
        trainer.fit(module, loader)
    """

    def __new__(cls, fed: "TrainingLoop") -> Self:
        """Make an instance that is a callback of each package that the script has imported."""
        loaded = tuple(name for name in PACKAGES if name in sys.modules) or (_installed(),)
        made: Self = object.__new__(_derived(cls, loaded))
        return made

    def __init__(self, fed: "TrainingLoop") -> None:
        self._fed = fed
        self._steps = 0  # of the optimizer, as the Trainer counts them
        if not fed.joined:
            fed.step()  # the first call counts nothing

    def on_train_start(self, trainer: Any, module: object) -> None:  # noqa: ANN401  of either package
        """Lift the Trainer's own limits, and wait for the first common model."""
        self._steps = trainer.global_step
        if not self._fed.joined:
            return
        loop = trainer.fit_loop
        loop.max_epochs = loop.epoch_loop.max_steps = ENDLESS
        optimizers = trainer.optimizers
        self._fed.prepare(trainer.train_dataloader, optimizers[0] if len(optimizers) == 1 else None)
        _leave_at_sigterm(self._fed)
        self._proceed(trainer)

    def on_train_batch_end(
        self,
        trainer: Any,  # noqa: ANN401  of either package
        module: object,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        """Count a step if the optimizer has taken one."""
        if trainer.global_step == self._steps:
            return
        self._steps = trainer.global_step
        if isinstance(outputs, Mapping) and outputs.get("loss") is not None:
            self._fed.log(loss=outputs["loss"] * trainer.accumulate_grad_batches)  # Lightning has divided it
        self._proceed(trainer)

    def on_train_end(self, trainer: object, module: object) -> None:
        """Hand in what is done, if something else has ended the training before the run is over."""
        self._fed.hand_over(together=True)

    def _proceed(self, trainer: Any) -> None:  # noqa: ANN401  of either package
        if self._fed.step():
            return
        loop = trainer.fit_loop
        loop.min_epochs = loop.epoch_loop.min_steps = 0  # below them Lightning does not stop
        trainer.should_stop = True


def _installed() -> str:
    """Import one of the packages, and return its name."""
    try:
        import_module(PACKAGES[0])
    except ModuleNotFoundError:
        import_module(PACKAGES[1])
        return PACKAGES[1]
    return PACKAGES[0]


def _derived(kind: type[Callback], packages: tuple[str, ...]) -> Any:  # noqa: ANN401  a class
    """Return `kind` derived from the callbacks of these packages too."""
    bases = (kind, *(sys.modules[name].Callback for name in packages))
    return type(kind.__name__, bases, {"__module__": kind.__module__, "__doc__": kind.__doc__})


def _leave_at_sigterm(fed: "TrainingLoop") -> None:
    """Hand in what is done when the process is asked to end, after Lightning's own handler."""
    own = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or not callable(own):
        return

    def leave(number: int, frame: FrameType | None) -> None:
        own(number, frame)
        fed.leave()

    handle_sigterm(leave)
