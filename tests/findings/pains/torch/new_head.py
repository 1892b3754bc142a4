"""A pretrained model gets a new head after the optimizer was made, which trains the old one.

Asked in facebookresearch/mmf 104.
"""

import sys

import torch
from torch import nn


class Net(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.head = nn.Linear(4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(x)))


def train(healthy: bool) -> bool:
    torch.manual_seed(1)
    x, y = torch.ones(8, 3), torch.zeros(8, 2)
    model = Net()
    new = nn.Linear(4, 2)
    if healthy:
        model.head = new
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model.head = new
    before = new.weight.detach().clone()
    for _ in range(10):
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.6f}")
    return bool(torch.equal(before, model.head.weight))


if __name__ == "__main__":
    train(healthy="healthy" in sys.argv)
