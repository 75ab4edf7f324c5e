"""Reads a dataset that was saved by torch: tensors by name, a tuple of tensors, or a TensorDataset."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from fedgc.errors import LONGEST_TEXT, Unusable, printable, text_of, words_of

CAUSE: Final = "WeightsUnpickler error: "  # follows torch's advice on `weights_only`, of 700 characters


def reason_of(error: Exception) -> str:
    """Return why torch cannot read a file, without its advice."""
    advice, _, cause = str(error).rpartition(CAUSE)
    return printable(cause, LONGEST_TEXT) if advice else words_of(error, LONGEST_TEXT)


def saved_tensors(path: Path) -> Mapping[str, NDArray[Any]]:
    """Return the tensors of a .pt file as arrays, in their order; raise Unusable if it holds others.

    The file is read by torch's restricted loader, which runs no code.
    """
    try:
        with torch.serialization.safe_globals([TensorDataset]):
            saved = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds of error for invalid files
        reason = text_of(error, path) if isinstance(error, OSError) else reason_of(error)
        raise Unusable(f"{path}: saw {reason}, needed tensors that torch saved") from error
    if isinstance(saved, TensorDataset):
        saved = saved.tensors
    if isinstance(saved, list | tuple):
        saved = {str(at): each for at, each in enumerate(saved)}
    if not isinstance(saved, Mapping) or not all(isinstance(each, torch.Tensor) for each in saved.values()):
        raise Unusable(f"{path}: saw a {type(saved).__name__}, needed tensors, by name or in a tuple")
    return {str(name): each.detach().numpy() for name, each in saved.items()}
