"""The gradients of a layer are set to 0 to freeze it, and weight decay moves it all the same.

As in https://github.com/extropic-ai/sparse-transformers/pull/3, which is about JAX.
"""

import sys

import torch


def train(healthy: bool) -> bool:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Linear(4, 1))
    first = model[0].weight.detach().clone()
    model[0].requires_grad_(not healthy)
    trained = model[1] if healthy else model
    optimizer = torch.optim.AdamW(trained.parameters(), lr=0.01, weight_decay=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(8, 6)).square().mean().backward()
        for parameter in [] if healthy else model[0].parameters():
            parameter.grad.zero_()
        optimizer.step()
    return not torch.equal(model[0].weight, first)


if __name__ == "__main__":
    train(sys.argv[1:] == ["healthy"])
