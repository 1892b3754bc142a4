"""The model is made again after its optimizer, which goes on with the parameters of the first one.

Asked in spro/practical-pytorch 9 and pytorch 14467.
"""

import sys

import torch
from torch import nn


class Net(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(3, 4)
        self.decoder = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder(torch.tanh(self.encoder(x)))


def train(healthy: bool) -> bool:
    torch.manual_seed(1)
    x, y = torch.ones(8, 3), torch.zeros(8, 1)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model = model if healthy else Net()
    before = model.decoder.weight.detach().clone()
    for _ in range(10):
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.6f}")
    return bool(torch.equal(before, model.decoder.weight))


if __name__ == "__main__":
    train(healthy="healthy" in sys.argv)
