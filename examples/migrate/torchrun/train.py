"""A script of several ranks: DistributedDataParallel, started by torchrun."""

import torch
from sklearn.datasets import load_digits
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS = 8

inputs, labels = (torch.tensor(each) for each in load_digits(return_X_y=True))


def accuracy(model: nn.Module) -> float:
    """Return the share of the held-out images that the model names right."""
    return float((model(inputs[::5].float() / 16).argmax(dim=1) == labels[::5]).float().mean())


distributed.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
rows = [row for row in range(len(labels)) if row % 5]
data = TensorDataset(inputs[rows].float() / 16, labels[rows])
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=16, sampler=sampler)
for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for batch, truth in loader:
        loss = nn.functional.cross_entropy(model(batch), truth)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
if distributed.get_rank() == 0:
    print(f"accuracy {accuracy(model):.3f}")
distributed.destroy_process_group()
