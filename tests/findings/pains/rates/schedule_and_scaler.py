"""A GradScaler skips steps, and the schedule goes on.

https://github.com/pytorch/pytorch/issues/44511
"""

import sys
import warnings

import torch

STEPS = 20
OVERFLOWS = range(4, 8)


def train(healthy: bool) -> bool:
    warnings.simplefilter("ignore", UserWarning)
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=STEPS)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for number in range(STEPS):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 3)).square().mean()
        scaler.scale(loss * (float("inf") if number in OVERFLOWS else 1.0)).backward()
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if not healthy or scaler.get_scale() >= scale:
            schedule.step()
    return bool(schedule.last_epoch > STEPS - len(OVERFLOWS))


if __name__ == "__main__":
    train(sys.argv[1:] == ["healthy"])
