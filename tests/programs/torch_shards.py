"""One of four processes that train sharded parameters: `torch_shards.py RANK PORT FOLDER`.

The ways: `fsdp2` and `fsdp1`, an embedding of which only the first rows are ever used, so that the
shards of the last ranks stay as they are, with a layer that has a learning rate of 0; `grid`, two
ranks of tensor parallel times two of `fully_shard`; `hybrid`, two copies of two shards; `stages`, a
pipeline of two stages with two ranks each; `early`, whose optimizer is made before `fully_shard`;
`checkpoint`, which asks for a state that the optimizer has not got yet.
The traces of each way are in a folder of that name. It prints a line of JSON: the parameters of the
whole model with their shapes, and in which steps each changed; of odometers, how often each moved.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from support.torch_odometers import Odometer
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import tracer

STEPS, ROWS = 5, 16


class Words(nn.Module):  # type: ignore[misc]
    """Reads the first quarter of the rows of its embedding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head, self.still = nn.Embedding(ROWS, 4), nn.Linear(4, 3), nn.Linear(3, 4)

    def forward(self, rank: int) -> torch.Tensor:
        rows = torch.arange(ROWS // 4).roll(rank)[:2]
        return self.still(self.head(self.table(rows))).pow(2).sum()


@contextmanager
def whole(model: Any) -> Iterator[dict[str, torch.Tensor]]:
    """A copy of each parameter as a whole, by its name."""
    is_fsdp1 = isinstance(model, FullyShardedDataParallel)
    with FullyShardedDataParallel.summon_full_params(model) if is_fsdp1 else nullcontext():
        yield {
            name.replace("_fsdp_wrapped_module.", ""): (
                each.full_tensor() if isinstance(each, DTensor) else each
            )
            .detach()
            .clone()
            for name, each in model.named_parameters()
        }


def train(
    model: Any, optimizer: Any, given: Any, folder: str, *, saved: bool = False
) -> dict[str, Any]:
    """Trains for some steps, and writes the trace of this rank; it may be `saved` before."""
    changed: dict[str, list[int]] = {}
    with tracer.record(effects=True) as recording:
        if saved:
            get_state_dict(model, optimizer)
        for step in range(1, STEPS + 1):
            optimizer.zero_grad()
            with whole(model) as before:
                pass
            model(given).sum().backward()
            optimizer.step()
            with whole(model) as after:
                for name, tensor in after.items():
                    steps = changed.setdefault(name, [])
                    steps += [] if torch.equal(tensor, before[name]) else [step]
    os.makedirs(folder, exist_ok=True)
    recording.trace().save(folder)
    return {
        name: {
            "shape": [*tensor.shape],
            "changed": changed[name],
            "moved": int(tensor.flatten()[0]),
        }
        for name, tensor in after.items()
    }


def odometer(model: Any) -> Any:
    """The optimizer of a model whose weights are 0."""
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return Odometer(model.parameters())


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))


def words(way: str, rank: int, folder: str) -> dict[str, Any]:
    model: Any = Words()
    if way == "fsdp1":
        cpu = torch.device("cpu")
        model = FullyShardedDataParallel(model, use_orig_params=True, device_id=cpu)
    else:
        fully_shard(model, mesh=init_device_mesh("cpu", (4,)))
    still = [each for name, each in model.named_parameters() if "still" in name]
    others = [each for name, each in model.named_parameters() if "still" not in name]
    groups = [{"params": others}, {"params": still, "lr": 0.0}]
    return train(model, torch.optim.SGD(groups, 0.01), rank, folder)


def grid(rank: int, folder: str) -> dict[str, Any]:
    model, mesh = layers(), init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    return train(model, odometer(model), torch.ones(2, 4), folder)


def hybrid(rank: int, folder: str) -> dict[str, Any]:
    inner = layers()
    optimizer = odometer(inner)
    model = FullyShardedDataParallel(
        inner,
        use_orig_params=True,
        device_id=torch.device("cpu"),
        sharding_strategy=ShardingStrategy.HYBRID_SHARD,
        device_mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards")),
    )
    return train(model, optimizer, torch.ones(2, 4), folder)


def stages(rank: int, folder: str) -> dict[str, Any]:
    """Ranks 0 and 1 train the first layer, the others the second one."""
    whole_model, groups = layers(), [dist.new_group([0, 1]), dist.new_group([2, 3])]
    stage = nn.ModuleDict({str(rank // 2): whole_model[rank // 2]})
    part = nn.parallel.DistributedDataParallel(
        whole_model[rank // 2], process_group=groups[rank // 2]
    )
    optimizer = odometer(stage)
    del whole_model
    return train(part, optimizer, torch.ones(2, 4), folder)


def early(rank: int, folder: str) -> dict[str, Any]:
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    fully_shard(model, mesh=init_device_mesh("cpu", (4,)))
    return train(model, optimizer, torch.ones(2, 4), folder)


def checkpoint(rank: int, folder: str) -> dict[str, Any]:
    inner = layers()
    optimizer, cpu = odometer(inner), torch.device("cpu")
    model = FullyShardedDataParallel(inner, use_orig_params=True, device_id=cpu)
    return train(model, optimizer, torch.ones(2, 4), folder, saved=True)


if __name__ == "__main__":
    rank, port, folder = int(sys.argv[1]), *sys.argv[2:]
    torch.set_num_threads(1)
    address, minute = f"tcp://127.0.0.1:{port}", timedelta(seconds=60)
    dist.init_process_group("gloo", address, rank=rank, world_size=4, timeout=minute)
    done = {way: words(way, rank, f"{folder}/{way}") for way in ("fsdp2", "fsdp1")}
    for function in (grid, hybrid, stages, early, checkpoint):
        done[function.__name__] = function(rank, f"{folder}/{function.__name__}")
    print(json.dumps(done))
    dist.destroy_process_group()
