"""What it costs to compare the parameters of `torch.optim` before and after each step.

    python benchmarks/torch_effects.py            # about 2 minutes, 1 GB; with PyTorch
    python benchmarks/torch_effects.py --quick    # only what is held

A traced optimizer beside one that is traced with effects, each with ten matrices of its own. The
gradients are there from the start, so the step is the update alone: nothing hides what is added.
Processor time of the one thread that steps.
"""

import argparse
import math
import time
from collections.abc import Iterator
from typing import Any

import bench
import torch

import tracer
from tracer.backends.torch import effects

MATRICES = 10
ROUNDS = 12
OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.01),
    "Adam": lambda parameters: torch.optim.Adam(parameters, 0.01),
    "Adam, fused": lambda parameters: torch.optim.Adam(parameters, 0.01, fused=True),
}


def tables(arguments: argparse.Namespace) -> Iterator[str]:
    """What is held while a step runs; and what is added to it, for more weights."""
    torch.set_num_threads(1)
    rows = [[f"{each:,}" for each in held(number)] for number in (10**3, 10**6)]
    yield bench.table(["weights, bytes", "held while a step runs"], rows, left=0)
    if arguments.quick:
        return
    head = ["optimizer", "weights", "ms a step", "without, again", "added, us", "ratio"]
    rows = []
    for name in OPTIMIZERS:
        rows += [[name, *cost(name, weights)] for weights in (10**5, 10**6, 10**7)]
    yield bench.table(head, rows)


def held(weights: int) -> tuple[int, int]:
    """How many bytes about so many weights take, and how many are held while one step runs."""
    copied = []
    copy_of = effects.Effects.copy_of

    def counting(self: Any, tensor: Any) -> Any:
        copy = copy_of(self, tensor)
        copied.append(0 if copy is None else copy.untyped_storage().nbytes())
        return copy

    optimizer = optimizer_of("SGD", weights, with_effects=True)
    effects.Effects.copy_of = counting  # type: ignore[method-assign]
    try:
        optimizer.step()
    finally:
        effects.Effects.copy_of = copy_of  # type: ignore[method-assign]
    parameters = optimizer.param_groups[0]["params"]
    return sum(each.untyped_storage().nbytes() for each in parameters), sum(copied)


def cost(name: str, weights: int) -> list[str]:
    """The figures of one row."""
    arms = {}
    for arm in ("traced", "again", "effects"):
        optimizer = optimizer_of(name, weights, with_effects=arm == "effects")
        optimizer.step()
        arms[arm] = bench.timed(optimizer.step, max(2, 10**7 // weights), time.thread_time)
    taken = bench.interleaved(arms, ROUNDS)
    return [
        f"{weights:,}",
        f"{1e3 * bench.spread(taken['traced']).median:.2f}",
        bench.added(taken, "again", "traced").text(0),
        bench.added(taken, "effects", "traced").text(0),
        bench.ratios(taken, "effects", "traced").text(2),
    ]


def optimizer_of(name: str, weights: int, *, with_effects: bool) -> Any:
    """An optimizer of so many weights, each of which has a gradient."""
    rows = math.isqrt(weights // MATRICES)
    columns = weights // MATRICES // rows
    parameters = [torch.nn.Parameter(torch.zeros(rows, columns)) for _ in range(MATRICES)]
    for each in parameters:
        each.grad = torch.ones_like(each)
    return tracer.wrap(OPTIMIZERS[name](parameters), effects=with_effects)


if __name__ == "__main__":
    bench.run(__doc__, tables)
