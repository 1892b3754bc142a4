"""Gradients are masked, and weight decay moves the weights all the same.

https://github.com/OPTML-Group/Unlearn-Saliency/issues/32
"""

import sys

import torch


def train(healthy: bool) -> bool:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Linear(4, 1))
    weight = model[0].weight
    mask = (torch.rand_like(weight) > 0.5).float()
    first = weight.detach().clone()
    decay = 0.0 if healthy else 0.01
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=decay)
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(8, 6)).square().mean().backward()
        weight.grad *= mask
        optimizer.step()
    return bool(((weight != first) & (mask == 0)).any())


if __name__ == "__main__":
    train(sys.argv[1:] == ["healthy"])
