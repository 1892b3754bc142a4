"""Layers in a plain list, which `model.parameters()` does not know: they get gradients, and stay.

Asked in pytorch 72580 and 59925.
"""

import sys

import torch
from torch import nn


class Net(nn.Module):  # type: ignore[misc]
    def __init__(self, healthy: bool) -> None:
        super().__init__()
        layers = [nn.Linear(3, 3) for _ in range(2)]
        self.hidden = nn.ModuleList(layers) if healthy else layers
        self.head = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.hidden:
            x = torch.tanh(layer(x))
        return self.head(x)


def train(healthy: bool) -> bool:
    torch.manual_seed(1)
    x, y = torch.ones(8, 3), torch.zeros(8, 1)
    model = Net(healthy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.hidden[0].weight.detach().clone()
    for _ in range(10):
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.6f}")
    return bool(torch.equal(before, model.hidden[0].weight))


if __name__ == "__main__":
    train(healthy="healthy" in sys.argv)
