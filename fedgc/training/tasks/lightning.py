"""A LightningModule as a task: `training_step` gives the loss, `configure_optimizers` the local optimizer.

Neither Lightning nor a Trainer is used: fedgc runs the loop, places the module on a device and collects
metrics. A step that accesses `self.trainer` fails. `log` and `log_dict` are recorded during validation and
ignored otherwise.
"""

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fedgc.config import RunConfig
from fedgc.errors import BadTask
from fedgc.training.tasks.dataset import over
from fedgc.training.tasks.task import Task

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

Log = Callable[[str, Any], None]


def from_lightning(
    module: Callable[[], Any],
    dataset: Any,  # noqa: ANN401  duck-typed, as torch's are
    config: RunConfig,
    *,
    validation: Iterable[Any] | None = None,
) -> Task:
    """Make a task from a LightningModule and one dataset that every client can read.

    The learning rate is the module's own: the setting `learning-rate` is not used.

    Args:
        module: Makes a new LightningModule: a class without required arguments, or a function.
        dataset: The training data, in any form that `over` takes.
        config: Settings of the run; `chunks` and `seed` are used.
        validation: A DataLoader, or any iterable of batches. The server runs `validation_step` on each batch
            and reports the mean of each logged metric. Without it the model is not evaluated.

    Returns:
        The task; its chunks are shared data, as with `over`.

    Raises:
        BadTask: `configure_optimizers` returns anything but one optimizer with one parameter group, which
            holds all parameters that are not frozen, or the dataset is unusable (see `over`).

    Example:
        task = fedgc.from_lightning(LitModel, dataset, config, validation=DataLoader(held_out))
    """
    optimizer = _optimizer(module())

    def evaluate(made: Any) -> Mapping[str, float]:  # noqa: ANN401  a user's LightningModule
        return _validated(made, validation or ())

    return over(
        dataset,
        config,
        model=module,
        loss=_loss,
        evaluate=evaluate if validation is not None else None,
        optimizer=optimizer,
    )


def _loss(module: Any, batch: Any) -> "Tensor":  # noqa: ANN401  the same: a user's objects
    """Return the loss of a training step, which may return a mapping with the loss in it."""
    with _logging_to(module, lambda _name, _value: None):
        returned = module.training_step(batch, 0)
    loss: Tensor = returned["loss"] if isinstance(returned, Mapping) else returned
    return loss


def _validated(module: Any, batches: Iterable[Any]) -> Mapping[str, float]:  # noqa: ANN401  the same: a user's objects
    """Return the mean over the batches of each metric that the validation steps log."""
    logged: dict[str, list[float]] = defaultdict(list)
    device = next(module.parameters()).device
    with _logging_to(module, lambda name, value: logged[name].append(float(value))):
        for number, batch in enumerate(batches):
            module.validation_step(_onto(batch, device), number)
    return {name: sum(values) / len(values) for name, values in logged.items()}


@contextmanager
def _logging_to(module: Any, log: Log) -> Iterator[None]:  # noqa: ANN401  the same: a user's objects
    """Redirect the module's `log` and `log_dict` to `log`, because they need a Trainer."""

    def one(name: str, value: object, *_: object, **_options: object) -> None:
        log(name, value)

    def several(values: Mapping[str, object], *_: object, **_options: object) -> None:
        for name, value in values.items():
            log(name, value)

    own = module.__dict__
    own["log"], own["log_dict"] = one, several
    try:
        yield
    finally:
        del own["log"], own["log_dict"]


def _optimizer(module: Any) -> Callable[[Iterable["Tensor"], float], "Optimizer"]:  # noqa: ANN401  the same: a user's objects
    """Return a function that makes the module's optimizer for other parameters."""
    from torch.optim import Optimizer

    made = module.configure_optimizers()
    if not isinstance(made, Optimizer) or len(made.param_groups) != 1:
        seen = f"{len(made.param_groups)} groups" if isinstance(made, Optimizer) else type(made).__name__
        raise BadTask(
            f"task: configure_optimizers() gave {seen}, needed one optimizer with one group of parameters, "
            "without a scheduler"
        )
    held = {id(each) for each in made.param_groups[0]["params"]}
    for name, each in module.named_parameters():
        if each.requires_grad and id(each) not in held:
            raise BadTask(
                f"task: configure_optimizers() leaves out {name}, needed all parameters with requires_grad; "
                "freeze in the module what is not to be trained (requires_grad_(False))"
            )
    kind = type(made)
    known = inspect.signature(kind).parameters
    options = {
        name: value for name, value in made.param_groups[0].items() if name in known and name != "params"
    }
    return lambda parameters, _rate: kind(parameters, **options)


def _onto(batch: Any, device: Any) -> Any:  # noqa: ANN401  the same: a user's objects
    """Return the nested batch on the module's device."""
    if hasattr(batch, "to"):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {name: _onto(each, device) for name, each in batch.items()}
    if isinstance(batch, list | tuple):
        return tuple(_onto(each, device) for each in batch)
    return batch
