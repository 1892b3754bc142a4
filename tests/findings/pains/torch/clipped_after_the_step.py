"""Gradients are clipped when the step has already used them.

Asked in awslabs/graphstorm 1366 and VGraphRNN/VGRNN 4.
"""

import sys

import torch
from torch.nn.utils import clip_grad_norm_


def train(healthy: bool) -> bool:
    torch.manual_seed(1)
    x, y = torch.randn(10, 8, 3), 100 * torch.ones(10, 8, 1)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    furthest = 0.0
    for inputs, targets in zip(x, y, strict=True):
        before = model.bias.item()
        optimizer.zero_grad()
        loss = ((model(inputs) - targets) ** 2).mean()
        loss.backward()
        if healthy:
            clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if not healthy:
            clip_grad_norm_(model.parameters(), 1.0)
        furthest = max(furthest, abs(model.bias.item() - before))
    print(f"loss {loss.item():.6f}")
    return furthest > 0.11


if __name__ == "__main__":
    train(healthy="healthy" in sys.argv)
