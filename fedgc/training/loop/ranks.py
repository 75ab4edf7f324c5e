"""The processes of a training script that was started by torchrun, accelerate or srun.

Rank 0 speaks with the client. Before each step it broadcasts what all ranks do next, so that none of them
waits in a collective operation for a rank that has stopped.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch import distributed as dist

from fedgc.errors import BadTask

VARIABLES: Final = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"))  # torchrun's, then srun's


class Ranks:
    """The processes of the script, which act together; a script of one process has no process group."""

    def __init__(self) -> None:
        """Make a process group beside the script's own; all ranks call it."""
        self._group: dist.ProcessGroup | None = None
        if not (dist.is_available() and dist.is_initialized()):
            size = started_as(os.environ)[1]
            if size > 1:
                raise BadTask(
                    f"fedgc.join: saw {size} processes and no process group, needed "
                    "torch.distributed.init_process_group before the first step"
                )
        elif dist.get_world_size() > 1:
            self._group = dist.new_group(backend="gloo")

    @property
    def several(self) -> bool:
        """Whether there is more than one process."""
        return self._group is not None

    def agree(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """Return rank 0's numbers on all ranks; each rank passes as many."""
        if self._group is None:
            return tuple(numbers)
        tensor = torch.tensor(numbers, dtype=torch.int64)
        dist.broadcast(tensor, src=0, group=self._group)
        return tuple(tensor.tolist())

    def gather(self, numbers: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """Return the numbers of each rank; an error if one of them is gone."""
        if self._group is None:
            return (tuple(numbers),)
        mine = torch.tensor(numbers, dtype=torch.int64)
        all_numbers = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(all_numbers, mine, group=self._group)
        return tuple(tuple(each.tolist()) for each in all_numbers)

    def share(self, value: Any) -> Any:  # noqa: ANN401  what pickle can carry between ranks of one script
        """Return rank 0's value on all ranks."""
        if self._group is None:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self._group)
        return values[0]

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Copy rank 0's tensors to all ranks: over the script's own process group where they are on a device.

        NCCL copies no tensors of the CPU, which a model on a GPU may have too.
        """
        if self._group is not None:
            for tensor in tensors:
                dist.broadcast(tensor, src=0, group=self._group if tensor.device.type == "cpu" else None)


def started_as(environment: Mapping[str, str]) -> tuple[int, int]:
    """Return the rank of this process and the number of processes, as the launcher's variables tell.

    >>> started_as({"RANK": "1", "WORLD_SIZE": "2"}), started_as({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"})
    ((1, 2), (0, 4))
    >>> started_as({"SLURM_NTASKS": "4"})  # inside an allocation, and not started by srun
    (0, 1)
    """
    for rank, size in VARIABLES:
        if environment.get(rank):
            return int(environment[rank]), int(environment.get(size) or 1)
    return 0, 1


def is_first() -> bool:
    """Whether this process is rank 0."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank() == 0
    return started_as(os.environ)[0] == 0
