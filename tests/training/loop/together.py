"""What two ranks do together, printed by rank 0 as JSON; started by tests/scripts/srun.py."""

import json
import sys

import torch
import torch.distributed as dist
from torch import nn

from fedgc.training.loop.model_state import ModelState
from fedgc.training.loop.ranks import Ranks
from tests.scripts.two_ranks import distributed, start_group

PRIVATE = ["2.*"]


class Model(nn.Sequential):
    """Layers, running statistics, and a private head."""

    def __init__(self) -> None:
        torch.manual_seed(dist.get_rank())  # DDP copies rank 0's, fully_shard does not
        super().__init__(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))


def exchange(wrapper: str, ranks: Ranks) -> dict[str, object]:
    """Write a vector and private tensors, and read both."""
    state = ModelState(distributed(Model(), wrapper), PRIVATE)
    first = dist.get_rank() == 0
    vector = torch.arange(state.layout.size, dtype=torch.float32).numpy() if first else None
    state.write(vector, ranks)
    state.write_private({}, ranks)  # nothing was kept
    state.write_private({"2.bias": torch.tensor([7.0, 8.0])} if first else {}, ranks)
    read = torch.zeros(state.layout.size).numpy() if first else None
    state.read(read)
    private = state.read_private()
    local = [getattr(each, "_local_tensor", each) for each in state.module.state_dict().values()]
    sums = ranks.gather([int(sum(float(each.sum()) for each in local) * 1000)])
    return {
        "names": [each.name for each in state.layout.tensors],
        "read": read.tolist() if read is not None else [],
        "bias": private["2.bias"].tolist() if first else [],
        "private": sorted(private),
        "sharded": state.sharded,
        "sums": [each[0] for each in sums],
    }


def main() -> None:
    torch.set_num_threads(1)
    start_group()
    ranks = Ranks()
    told = {
        "agreed": ranks.agree((dist.get_rank() + 5, 2)),
        "gathered": ranks.gather((dist.get_rank(), 3)),
        "shared": ranks.share({"of": dist.get_rank()}),
        "ddp": exchange("ddp", ranks),
        "fsdp": exchange("fsdp", ranks),
    }
    if dist.get_rank() == 0:
        sys.stdout.write(json.dumps(told) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
