"""Keras on PyTorch in one of several processes, which `DistributedDataParallel` keeps alike.

KERAS_BACKEND=torch python keras_torch_ranks.py RANK PORT FOLDER
"""

import json
import sys
from pathlib import Path

import keras
import torch
import torch.distributed as group

import tracer


class Odometer(keras.optimizers.Optimizer):  # type: ignore[misc]
    """Adds exactly 1 to a weight each time that it is updated."""

    def update_step(self, gradient: object, variable: object, learning_rate: object) -> None:
        self.assign_add(variable, keras.ops.ones(variable.shape, variable.dtype))  # type: ignore[attr-defined]


def main(rank: int, port: str, folder: Path) -> None:
    """Train with one optimizer that gets each variable, and one that gets all at once."""
    group.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    keras.utils.set_random_seed(1)
    truth = {}
    for name, optimizer in (("odometer", Odometer(1.0)), ("sgd", keras.optimizers.SGD(0.1))):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, name=name)])
        tracer.wrap(optimizer)
        before = [each.numpy() for each in model.trainable_variables]
        together = torch.nn.parallel.DistributedDataParallel(model)
        for _ in range(5):
            model.zero_grad()
            loss = together(torch.ones(8, 4) * (rank + 1)).mean()
            loss.backward()
            variables = model.trainable_variables
            with torch.no_grad():
                optimizer.apply([each.value.grad for each in variables], variables)
        (folder / name).mkdir(exist_ok=True)
        tracer.trace_of(optimizer).save(folder / name / f"rank-{rank}.json")
        truth[name] = [
            (each.numpy() - old).tolist()
            for each, old in zip(model.trainable_variables, before, strict=True)
        ]
    (folder / f"truth-{rank}.json").write_text(json.dumps(truth))
    group.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
