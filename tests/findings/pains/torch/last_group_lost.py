"""Gradients of four batches are accumulated, and an epoch has 13: the last is never applied.

Asked in timoschick/pet 36 and ultralytics 11217.
"""

import sys

import torch


def train(healthy: bool) -> bool:
    torch.manual_seed(1)
    batches = 12 if healthy else 13
    x, y = torch.randn(batches, 8, 3), torch.ones(batches, 8, 1)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        for number, (inputs, targets) in enumerate(zip(x, y, strict=True), 1):
            loss = ((model(inputs) - targets) ** 2).mean() / 4
            loss.backward()
            if number % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
    print(f"loss {loss.item():.6f}")
    return model.bias.grad is not None


if __name__ == "__main__":
    train(healthy="healthy" in sys.argv)
