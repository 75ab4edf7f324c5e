"""The part of a script's model that is exchanged: read into a vector, written from one.

It holds the trainable parameters in the module's order, then the floating-point buffers that belong to the
module's state. Frozen parameters, integer buffers and private tensors are not in it. Wrappers (DDP,
torch.compile, also of parts) are removed, so names are those of the plain module. A module sharded by
`fully_shard` (FSDP2) is gathered and scattered by the functions of torch.distributed.checkpoint.

Tensors of half precision have float32 copies (`training/float32_copies.py`): the vector holds their values.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fedgc.errors import BadTask
from fedgc.training.adapter import announced_layout
from fedgc.training.flat import Vector, exchanged_tensors, plain_name
from fedgc.training.float32_copies import HALF, Float32Copies
from fedgc.training.loop.float32_steps import step_in_float32
from fedgc.training.loop.ranks import Ranks
from fedgc.training.lora_ranks import padded

DISTRIBUTED: Final = ("DistributedDataParallel", "DataParallel")  # which hold the module that is trained
FSDP1: Final = "FullyShardedDataParallel"  # each of its ranks has pieces of tensors, under other names


class ModelState:
    """The exchanged tensors of a module, and the private ones.

    >>> state = ModelState(nn.Linear(2, 1), private=["bias"])
    >>> [str(each) for each in state.layout.tensors], list(state.private)
    (['weight float32[1, 2]'], ['bias'])
    """

    def __init__(self, model: nn.Module, private: Sequence[str] = ()) -> None:
        """`private` holds patterns of names, such as `head.*`."""
        if not isinstance(model, nn.Module):
            raise BadTask(f"fedgc.join: saw a {type(model).__name__}, needed a torch module")
        if any(type(each).__name__ == FSDP1 for each in model.modules()):
            raise BadTask(f"fedgc.join: saw {FSDP1} (FSDP1), needed a model sharded by fully_shard (FSDP2)")
        self.model: Final = model
        self.module: Final = unwrapped(model)
        tensors = exchanged_tensors(self.module, private)
        self.private: Final = tuple(tensors.private)
        self._private_patterns: Final = tuple(private)
        self._names: Final = (*tensors.parameters, *tensors.buffers)
        self.layout = tensors.layout()
        self._shapes: Final = dict(self.layout.shapes)
        self._common: Vector | None = (
            None  # of adapters of mixed ranks: the components that are not trained here
        )
        trained = (*tensors.parameters.items(), *tensors.private.items())
        self._trained: Final = tuple(name for name, each in trained if each.requires_grad)
        self._at_join: Final = {plain_name(name) for name, _ in self.module.named_parameters()}
        self._copies: Final = Float32Copies()

    def bind(self, rank: int = 0) -> None:
        """Enter the digest of the frozen parameters and the adapter into the layout. All ranks call it.

        With a rank, the vector has an adapter of this rank; the module may have only its first components.
        """
        self.layout = announced_layout(self.layout, self.module, self._private_patterns)
        if rank:
            self.layout = padded(self.layout, rank)
            self._common = np.zeros(self.layout.size, np.float32)

    def step_in_float32(self) -> tuple[RemovableHandle, ...]:
        """Have optimizers step on float32 copies of parameters of half precision; return the hooks."""
        if self.sharded:
            return ()
        return step_in_float32(self._copies, lambda: self._live(self._trained))

    def load_optimizer(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Load the state of an optimizer, in float32 where it steps in float32."""
        with self._copies.stepping(optimizer, self._live(self._trained)):
            optimizer.load_state_dict(state)

    def read(self, into: Vector | None) -> None:
        """Copy the tensors into the vector. All ranks call it; only rank 0 has a vector.

        Raises:
            BadTask: A parameter that was frozen or not there is trained now, or a tensor has another shape
                or no data.
        """
        live = self._whole()
        self._check_trained()
        tensors: Mapping[str, Any] = self._gathered() if _sharded(live) else live
        if into is not None:
            if self._common is not None:
                np.copyto(into, self._common)
            for name, part in self._split(into).items():
                part.copy_(self._copies.read(name, tensors[name]))

    def write(self, vector: Vector | None, ranks: Ranks) -> None:
        """Copy the vector into the tensors. All ranks call it; only rank 0 has a vector."""
        named: dict[str, Tensor] = {}
        if vector is not None:
            named = self._split(vector)
            if self._common is not None:
                np.copyto(self._common, vector)
        self._write(named, self._whole(), ranks)

    def _split(self, vector: Vector) -> dict[str, Tensor]:
        """Return what the module has of a vector, by name."""
        parts = self.layout.split(vector)
        return {name: torch.from_numpy(_first(part, self._shapes[name])) for name, part in parts.items()}

    def read_private(self) -> dict[str, Tensor]:
        """Return copies of the private tensors on the CPU; on other ranks than 0 they may be missing."""
        live = self._live(self.private)
        tensors: Mapping[str, Any] = self._gathered() if _sharded(live) else live
        return {
            name: self._copies.read(name, tensors[name]).to("cpu", copy=True)
            for name in self.private
            if name in tensors
        }

    def write_private(self, named: Mapping[str, Tensor], ranks: Ranks) -> None:
        """Set the private tensors. All ranks call it; only rank 0's tensors count."""
        live = self._live(self.private)
        fitting = {
            name: each for name, each in named.items() if name in live and each.shape == live[name].shape
        }
        self._write(fitting, live, ranks)

    @property
    def undistributed(self) -> nn.Module:
        """The model without DistributedDataParallel, so that a rank can use it alone."""
        inner = getattr(self.model, "module", None)
        return inner if type(self.model).__name__ in DISTRIBUTED and inner is not None else self.model

    @property
    def sharded(self) -> bool:
        """Whether each rank holds a part of the model's tensors."""
        return _sharded(self._live(self._names))

    def _live(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Return the module's present tensors of these names.

        A trainer that moves the module to a device after `join` replaces its buffers, and on some devices its
        parameters.
        """
        named = (self.module.named_parameters, self.module.named_buffers)
        found = {plain_name(name): each for of in named for name, each in of(remove_duplicate=False)}
        for name in names:
            if name not in found:
                raise BadTask(
                    f"fedgc: saw a model without {name}, which it had at fedgc.join; needed the call to "
                    "fedgc.join after the model is complete"
                )
        return {name: found[name] for name in names}

    def _whole(self) -> dict[str, Tensor]:
        """Return the exchanged tensors; one of another shape might be read or written by broadcasting."""
        live = self._live(self._names)
        for name, each in live.items():
            if tuple(each.shape) != tuple(self._shapes[name]):
                raise BadTask(
                    f"fedgc: saw {name} of shape {list(each.shape)}, which was {list(self._shapes[name])} at "
                    "fedgc.join; needed the call to fedgc.join after the model is complete"
                )
            if each.is_meta:
                raise BadTask(f"fedgc: saw {name} on the meta device, needed a model that is loaded")
        return live

    def _check_trained(self) -> None:
        """Raise BadTask if a parameter that is not exchanged is trained."""
        known = {*self._trained, *self._names}
        for name, each in self.module.named_parameters():
            plain = plain_name(name)
            if not each.requires_grad or plain in known or self._is_private(name):
                continue
            if plain not in self._at_join:
                raise BadTask(
                    f"fedgc: saw {plain} trained, which the model did not have at fedgc.join and which is "
                    "not exchanged; needed the call to fedgc.join after the model is complete"
                )
            raise BadTask(
                f"fedgc: saw {plain} trained, which was frozen at fedgc.join and is not "
                "exchanged; needed requires_grad=True before the call of all that is trained at any time"
            )

    def _is_private(self, name: str) -> bool:
        return any(fnmatchcase(plain_name(name), pattern) for pattern in self._private_patterns)

    def _gathered(self) -> Mapping[str, Any]:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        return get_model_state_dict(self.module, options=options)

    def _write(self, named: Mapping[str, Tensor], targets: Mapping[str, Tensor], ranks: Ranks) -> None:
        if _sharded(targets):
            from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

            state: dict[str, Any] = {name: each.to(targets[name].dtype) for name, each in named.items()}
            options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=False)
            set_model_state_dict(self.module, state, options=options)
            for name, each in named.items():
                if targets[name].dtype in HALF:
                    self._copies.remember(name, each)
            return
        for name, each in named.items():
            self._copies.write(name, targets[name], each)
        if ranks.several:
            values = {name: self._copies.read(name, each) for name, each in targets.items()}
            ranks.broadcast(values.values())
            for name, each in values.items():
                self._copies.write(name, targets[name], each)


def _first(part: Vector, shape: tuple[int, ...]) -> Vector:
    """Return the first numbers of a tensor along each of its axes."""
    sides: tuple[Any, ...] = (*map(slice, shape), ...)
    own: Vector = part[sides]
    return own


def _sharded(tensors: Mapping[str, Tensor]) -> bool:
    return any(hasattr(each, "full_tensor") for each in tensors.values())


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside wrappers such as DistributedDataParallel and torch.compile."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in DISTRIBUTED:
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner
