"""With two processes, Accelerate steps a schedule twice for each step of the optimizer.

https://github.com/huggingface/accelerate/issues/2926
"""

import sys

import torch

STEPS, PROCESSES = 20, 2


def train(healthy: bool) -> bool:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made_for = STEPS * PROCESSES if healthy else STEPS
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, total_iters=made_for)
    rates = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
        rates.append(optimizer.param_groups[0]["lr"])
        for _ in range(PROCESSES):  # as `accelerate.scheduler.AcceleratedScheduler.step` does
            schedule.step()
    return bool(rates[STEPS // 2 + 1] < 0.002)


if __name__ == "__main__":
    train(sys.argv[1:] == ["healthy"])
