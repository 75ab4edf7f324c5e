"""Model export: a trained vector as a file with the named tensors of the module's `state_dict`.

A `.safetensors` file holds the tensors, and the description as metadata (text). A `.pt` file holds a dict
with `state_dict` and `about`, which torch reads with `weights_only=True`. Neither needs fedgc to be read, and
neither can run code.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors.torch import save_file

from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed, Unusable
from fedgc.training.flat import Vector
from fedgc.training.server_model import CommonModel
from fedgc.training.tasks import Task

FORMATS: Final = (".safetensors", ".pt")

State = Mapping[str, torch.Tensor]


def state_of(task: Task, config: RunConfig, vector: Vector) -> State:
    """Return the `state_dict` of the task's model with this vector."""
    state: State = CommonModel(task, config).module(vector).state_dict()
    return state


def first_state(task: Task, config: RunConfig) -> State:
    """Return the `state_dict` of the initial model of a run."""
    common = CommonModel(task, config)
    return state_of(task, config, common.first())


def arrays_of(state: Mapping[str, object]) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Return a `state_dict` as arrays, and the names of entries that cannot be arrays.

    Floating-point types that numpy lacks (bf16, float8) become float32, without loss.

    >>> arrays, left_out = arrays_of({"half": torch.ones(2, dtype=torch.bfloat16), "words": "none"})
    >>> arrays, left_out
    ({'half': array([1., 1.], dtype=float32)}, ('words',))
    """
    found = {name: _array(each) for name, each in state.items()}
    arrays = {name: each for name, each in found.items() if each is not None}
    return arrays, tuple(name for name in found if name not in arrays)


def _array(value: object) -> np.ndarray | None:
    if not isinstance(value, torch.Tensor):
        return None
    with suppress(TypeError, RuntimeError):
        return value.detach().cpu().numpy()
    with suppress(TypeError, RuntimeError):
        return value.detach().cpu().float().numpy() if value.is_floating_point() else None
    return None


def check_path(path: Path) -> None:
    """Raise Unusable unless a model can be written to this path."""
    if path.suffix not in FORMATS:
        raise Unusable(f"{path}: saw {path.suffix or 'no suffix'}, needed {' or '.join(FORMATS)}")
    if path.exists():
        raise Unusable(f"{path}: saw a file, needed a new one")
    if not path.parent.is_dir():
        raise Unusable(f"{path}: saw no folder {path.parent}, needed one that is there")


def write_model(path: Path, state: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Write tensors (or arrays) and their description atomically."""
    check_path(path)
    # safetensors rejects shared memory, so tied tensors are copied and written twice.
    tensors = {
        name: torch.as_tensor(each).detach().cpu().contiguous().clone() for name, each in state.items()
    }
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        if path.suffix == ".pt":
            torch.save({"state_dict": tensors, "about": dict(about)}, part)
        else:
            text = {name: each if isinstance(each, str) else json.dumps(each) for name, each in about.items()}
            save_file(tensors, part, {"format": "pt", **text})
        part.replace(path)
    except OSError as error:
        raise EdgeFailed(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
