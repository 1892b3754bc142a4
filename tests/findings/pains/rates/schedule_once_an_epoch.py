"""A schedule that is made for all steps is stepped once an epoch.

https://github.com/Lightning-AI/pytorch-lightning/issues/5631
"""

import sys

import torch

EPOCHS, BATCHES = 2, 20


def train(healthy: bool) -> bool:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS * BATCHES)
    for _ in range(EPOCHS):
        for _ in range(BATCHES):
            optimizer.zero_grad()
            model(torch.randn(4, 3)).square().mean().backward()
            optimizer.step()
            if healthy:
                schedule.step()
        if not healthy:
            schedule.step()
    return bool(optimizer.param_groups[0]["lr"] > 0.09)


if __name__ == "__main__":
    train(sys.argv[1:] == ["healthy"])
