"""A training script of several ranks: DDP, FSDP2 or Accelerate, started by a launcher.

Two ranks with half of a batch each take the same steps as `trained_alone` does with whole batches.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

Parts = tuple[nn.Module, torch.optim.Optimizer, DataLoader]

SAMPLES, BATCH, FEATURES, CLASSES = 64, 16, 6, 4


def samples() -> TensorDataset:
    chance = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, FEATURES, generator=chance)
    return TensorDataset(inputs, (inputs @ torch.randn(FEATURES, CLASSES, generator=chance)).argmax(1))


def new_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Sequence[Tensor]) -> None:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()


def trained_alone(steps: int) -> Tensor:
    """Return the model's vector after so many steps in one process."""
    model = new_model()
    optimizer = optimizer_of(model)
    batches = list(DataLoader(samples(), BATCH))
    for number in range(steps):
        step(model, optimizer, batches[number % len(batches)])
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def start_group(backend: str = "gloo") -> None:
    """Make the process group; srun tells the rank in variables of its own."""
    place = {}
    if "RANK" not in os.environ:
        place = {"rank": int(os.environ["SLURM_PROCID"]), "world_size": int(os.environ["SLURM_NTASKS"])}
    dist.init_process_group(backend, **place)


def distributed(model: nn.Module, wrapper: str, device: str = "cpu") -> nn.Module:
    if wrapper == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for layer in model.children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def wrapped(wrapper: str, backend: str, device: str) -> Parts:
    start_group(backend)
    if device == "cuda":
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    model = distributed(new_model().to(device), wrapper, device)
    sampler = DistributedSampler(samples(), shuffle=False)
    return model, optimizer_of(model), DataLoader(samples(), BATCH // dist.get_world_size(), sampler=sampler)


def accelerated() -> Parts:
    from accelerate import Accelerator

    model = new_model()
    loader = DataLoader(samples(), BATCH // 2)
    return Accelerator(cpu=True).prepare(model, optimizer_of(model), loader)


def main() -> None:
    import fedgc

    parser = argparse.ArgumentParser()
    parser.add_argument("--wrapper", default="ddp")
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=0)  # after which the script ends by itself
    parser.add_argument("--prints-steps", action="store_true")  # each rank, the steps of the run so far
    parser.add_argument("--fault", default="")  # raise or kill
    parser.add_argument("--at", default="")  # name of the client, rank and step of the fault, as north:1:5
    parser.add_argument("--once", type=Path, default=Path("/dev/null"))  # a file that tells of the fault
    words = parser.parse_args()
    torch.set_num_threads(1)
    if words.wrapper == "accelerate":
        model, optimizer, loader = accelerated()
    else:
        model, optimizer, loader = wrapped(words.wrapper, words.backend, words.device)
    fed = fedgc.join(model, optimizer=optimizer)
    for done, batch in enumerate(fed.steps(loader), start=1):
        at = f"{fed.client.get('name')}:{dist.get_rank()}:{done}"
        if words.at == at and not words.once.exists():
            words.once.touch()
            if words.fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("this rank has no data")
        if words.prints_steps:
            sys.stdout.write(f"rank {dist.get_rank()}: step {fed.global_step} of the run\n")
        step(model, optimizer, [each.to(words.device) for each in batch])
        time.sleep(words.step_s)
        if done == words.steps:
            break


if __name__ == "__main__":
    main()
