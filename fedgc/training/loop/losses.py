"""The loss that a training script reports with `fed.log`."""

import torch

from fedgc.errors import BadTask


def loss_number(loss: float | torch.Tensor) -> float:
    """Return a reported loss as a number; reading one from a GPU waits for it.

    Raises:
        BadTask: It is not one number.

    >>> loss_number(torch.ones(1, requires_grad=True))
    1.0
    >>> loss_number(torch.ones(3))
    Traceback (most recent call last):
    fedgc.errors.BadTask: fed.log: saw the loss 'a tensor of 3 numbers', needed one number
    """
    try:
        return float(loss.detach() if isinstance(loss, torch.Tensor) else loss)
    except (TypeError, ValueError, RuntimeError) as error:
        seen = f"a tensor of {loss.numel()} numbers" if isinstance(loss, torch.Tensor) else str(loss)[:60]
        raise BadTask(f"fed.log: saw the loss {seen!r}, needed one number") from error
