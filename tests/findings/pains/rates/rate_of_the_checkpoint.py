"""load_state_dict brings the learning rate of the run before.

https://github.com/pytorch/pytorch/issues/156846
"""

import sys

import torch


def train(healthy: bool) -> bool:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    saved = pretrained(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5, momentum=0.9)
    optimizer.load_state_dict(saved)
    if healthy:
        for group in optimizer.param_groups:
            group["lr"] = 1e-5
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
    return bool(optimizer.param_groups[0]["lr"] != 1e-5)


def pretrained(model: torch.nn.Module) -> dict[str, object]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(4, 3)).square().mean().backward()
    optimizer.step()
    return dict(optimizer.state_dict())


if __name__ == "__main__":
    train(sys.argv[1:] == ["healthy"])
