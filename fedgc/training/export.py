"""Model export: a trained vector as a file with the named tensors of the module's `state_dict`.

A `.safetensors` file holds the tensors, and the description as metadata (text). A `.pt` file holds a dict
with `state_dict` and `about`, which torch reads with `weights_only=True`. Neither needs fedgc to be read, and
neither can run code. An adapter of PEFT is written as a folder in PEFT's own format.
"""

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors.torch import save_file

from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed, Unusable, system_errors
from fedgc.files import whole
from fedgc.messages import Layout
from fedgc.training.flat import Vector
from fedgc.training.server_model import CommonModel
from fedgc.training.tasks import Task

FORMATS: Final = (".safetensors", ".pt")

State = Mapping[str, torch.Tensor]


def state_of(task: Task, config: RunConfig, vector: Vector) -> State:
    """Return the `state_dict` of the task's model with this vector."""
    state: State = CommonModel(task, config).module(vector).state_dict()
    return state


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


def check_folder(path: Path) -> None:
    """Raise Unusable unless a folder can be made at this path."""
    if path.exists():
        raise Unusable(f"{path}: saw a file or folder, needed a new folder")
    if not path.parent.is_dir():
        raise Unusable(f"{path}: saw no folder {path.parent}, needed one that is there")


def write_adapter(path: Path, layout: Layout, vector: Vector, about: Mapping[str, Any]) -> None:
    """Write an adapter as a folder that PEFT reads: its configuration and its tensors.

    Raises:
        Unusable: The model is no adapter of PEFT, or more or less of it is exchanged than PEFT saves.
        EdgeFailed: The folder cannot be written.
    """
    check_folder(path)
    adapter = layout.adapter
    if adapter is None:
        raise Unusable(f"{path}: saw a model without an adapter of PEFT, needed one, or a file {FORMATS[0]}")
    beside = [each.name for each, name in zip(layout.tensors, adapter.names, strict=True) if not name]
    if beside:
        raise Unusable(f"{path}: saw {beside[0]}, which PEFT does not save; needed a file {FORMATS[0]}")
    if adapter.lacks:
        raise Unusable(f"{path}: {adapter.lacks} of the adapter is not exchanged; needed the whole adapter")
    parts = layout.split(vector).values()
    tensors = {name: torch.tensor(part) for name, part in zip(adapter.names, parts, strict=True)}
    config = json.dumps(adapter.settings(), indent=2, sort_keys=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.mkdir()
        (part / "adapter_config.json").write_text(config + "\n")
        save_file(tensors, part / "adapter_model.safetensors", _metadata(about))
        part.replace(path)
    except OSError as error:
        raise EdgeFailed(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _metadata(about: Mapping[str, Any]) -> dict[str, str]:
    text = {name: each if isinstance(each, str) else json.dumps(each) for name, each in about.items()}
    return {"format": "pt", **text}


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
    with system_errors(f"{path}: cannot be written"), whole(path) as part:
        if path.suffix == ".pt":
            torch.save({"state_dict": tensors, "about": dict(about)}, part)
        else:
            save_file(tensors, part, _metadata(about))
