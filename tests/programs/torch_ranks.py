"""One of two processes that train with PyTorch in each way: `torch_ranks.py RANK PORT FOLDER`.

The ways: `ddp`, a model in `DistributedDataParallel`; `zero`, whose optimizer is split, too;
`fsdp`, whose parameters are split: a rank prints 0 for one of which it holds nothing; and `fsdp2`;
`whole`, the same with modules that hold whole copies while the optimizer steps; `left`, the same
with an optimizer that leaves empty shards alone; `scaled`, with a loss scale and a frozen layer,
so that nothing that rank 0 holds is trained; `backward`, with an optimizer of each parameter,
which steps as soon as there is a gradient; `order`, where rank 1 uses two optimizers in another
order than rank 0. And two with a fault:
`rates`, whose rank 1 has another learning rate from step 3 on, and `none`, whose rank 1 drops a
gradient. The trace of each way is in a folder of that name. It prints a line of JSON: what the
odometers of each way say, and how many parameters the optimizer of this rank has.
"""

import json
import os
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from support.torch_odometers import Odometer, readings
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

import tracer

STEPS = 5


class Local(Odometer):
    """Writes past `DTensor` to the local tensors."""

    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.detach().to_local().add_(1)


def sharded(model: Any) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))


def in_backward(folder: str) -> tuple[list[int], int]:
    model: Any = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    for each in (model[0], model):
        sharded(each)
    with tracer.record() as recording:
        for parameter in model.parameters():
            optimizer = Odometer([parameter])
            parameter.register_post_accumulate_grad_hook(lambda own, by=optimizer: by.step())
        for _ in range(STEPS):
            model(torch.ones(4, 3)).sum().backward()
    os.makedirs(folder, exist_ok=True)
    recording.trace().save(folder)
    return readings([each.full_tensor() for each in model.parameters()]), 1


def in_another_order(rank: int, folder: str) -> tuple[list[int], int]:
    """Two models of equal names; rank 1 trains the second one first."""
    models: list[Any] = [torch.nn.Linear(3, 2) for _ in range(2)]
    for parameter in (*models[0].parameters(), *models[1].parameters()):
        torch.nn.init.zeros_(parameter)
    with tracer.record() as recording:
        made = [Odometer(each.parameters()) for each in models]
        for number in (1, 0) if rank else (0, 1):
            for _ in range(STEPS - 3 * number):
                made[number].zero_grad()
                models[number](torch.ones(4, 3)).sum().backward()
                made[number].step()
    os.makedirs(folder, exist_ok=True)
    recording.trace().save(folder)
    return readings([*models[0].parameters(), *models[1].parameters()]), 2


def train(rank: int, way: str, folder: str) -> tuple[list[int], int]:
    torch.manual_seed(0)
    inner = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    for parameter in inner.parameters():
        torch.nn.init.zeros_(parameter)
    model = inner
    if way in ("fsdp", "scaled"):
        from torch.distributed.fsdp import FullyShardedDataParallel

        inner[0].requires_grad_(way == "fsdp")
        cpu = torch.device("cpu")
        model = FullyShardedDataParallel(inner, use_orig_params=True, device_id=cpu)
    elif way in ("fsdp2", "whole", "local", "none"):
        sharded(inner)
        inner.set_reshard_after_backward(way != "whole")
    else:
        model = torch.nn.parallel.DistributedDataParallel(inner)
    if way == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        group: Any = {"params": [*model.parameters()], "weight_decay": 0.1}
        optimizer = ZeroRedundancyOptimizer([group], optimizer_class=Odometer, lr=1.0)
    else:
        optimizer = (Local if way == "local" else Odometer)(model.parameters())
    tracer.wrap(optimizer, effects=True)
    scaler = ShardedGradScaler("cpu", init_scale=4.0, enabled=way == "scaled")
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(4, 3) * (rank + 1)).sum()).backward()
        if rank == 1 and way == "rates":
            optimizer.param_groups[0]["lr"] = 1.0 if step < 3 else 0.5
        if rank == 1 and way == "none":
            inner[0].weight.grad = None
        scaler.step(optimizer)
        scaler.update()
    if way == "whole":
        inner.reshard()
    os.makedirs(folder, exist_ok=True)
    tracer.trace_of(optimizer).save(folder)
    own = [
        p for group in getattr(optimizer, "optim", optimizer).param_groups for p in group["params"]
    ]
    whole = [getattr(p, "full_tensor", lambda own=p: own)() for p in model.parameters()]
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
    ways = ("ddp", "zero", "fsdp", "fsdp2", "whole", "local", "scaled", "rates", "none")
    done = {way: train(int(rank), way, f"{folder}/{way}") for way in ways}
    done["backward"] = in_backward(f"{folder}/backward")
    done["order"] = in_another_order(int(rank), f"{folder}/order")
    print(json.dumps(done))
    dist.destroy_process_group()
