"""One of two processes that train with PyTorch in each way: `torch_ranks.py RANK PORT FOLDER`.

The ways: `ddp`, a model in `DistributedDataParallel`; `zero`, whose optimizer is split, too;
`fsdp`, whose parameters are split: a rank prints 0 for one of which it holds nothing; and `fsdp2`.
The trace of each way is in a folder of that name. It prints a line of JSON: what the odometers of
each way say, and how many parameters the optimizer of this rank has.
"""

import json
import os
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from support.torch_odometers import Odometer, readings

import tracer

STEPS = 5


def train(rank: int, way: str, folder: str) -> tuple[list[int], int]:
    torch.manual_seed(0)
    inner = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    for parameter in inner.parameters():
        torch.nn.init.zeros_(parameter)
    model = inner
    if way == "fsdp":
        from torch.distributed.fsdp import FullyShardedDataParallel

        cpu = torch.device("cpu")
        model = FullyShardedDataParallel(inner, use_orig_params=True, device_id=cpu)
    elif way == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(inner, mesh=init_device_mesh("cpu", (2,)))
    else:
        model = torch.nn.parallel.DistributedDataParallel(inner)
    if way == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        group: Any = {"params": [*model.parameters()], "weight_decay": 0.1}
        optimizer = ZeroRedundancyOptimizer([group], optimizer_class=Odometer, lr=1.0)
    else:
        optimizer = Odometer(model.parameters())
    tracer.wrap(optimizer, effects=True)
    with tracer.assert_all_changed(inner):
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.ones(4, 3) * (rank + 1)).sum().backward()
            optimizer.step()
    os.makedirs(folder, exist_ok=True)
    tracer.trace_of(optimizer).save(folder)
    own = [
        p for group in getattr(optimizer, "optim", optimizer).param_groups for p in group["params"]
    ]
    whole = [p.full_tensor() if way == "fsdp2" else p for p in model.parameters()]
    held = [torch.cat([each.detach().flatten(), torch.zeros(1)]) for each in whole]
    return readings(held), len(own)


if __name__ == "__main__":
    rank, port, folder = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        f"tcp://127.0.0.1:{port}",
        rank=int(rank),
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    ways = ("ddp", "zero", "fsdp", "fsdp2")
    print(json.dumps({way: train(int(rank), way, f"{folder}/{way}") for way in ways}))
    dist.destroy_process_group()
