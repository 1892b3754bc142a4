"""Accelerate steps the schedule once for each process (accelerate 2926, 1398)."""

import sys

import torch
from accelerate import Accelerator, debug_launcher
from torch import nn

BATCHES = 20


def train(healthy: bool) -> None:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    data = torch.utils.data.DataLoader(torch.randn(8 * BATCHES, 4), batch_size=4)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    total = BATCHES * (accelerator.num_processes if healthy else 1)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer.optimizer, 1.0, 0.0, total_iters=total)
    schedule = accelerator.prepare(schedule)
    rates = []
    for batch in data:
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.zero_grad()
        accelerator.backward(model(batch).pow(2).mean())
        optimizer.step()
        schedule.step()
    if accelerator.is_main_process:
        print(sum(each.sum() for each in model.parameters()).item())
        print("hurts", rates[BATCHES // 2] == 0.0)


if __name__ == "__main__":
    debug_launcher(train, ("healthy" in sys.argv,), num_processes=2)
