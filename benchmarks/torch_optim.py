"""What the tracer adds to a step of PyTorch's own optimizers, beside a hook that counts.

Processor time of the one thread that steps.

    python benchmarks/torch_optim.py            # about 2 minutes; with PyTorch, without TensorFlow
    python benchmarks/torch_optim.py --quick    # only what each of them counts
"""

import argparse
import time
from collections.abc import Iterator
from typing import Any

import bench
import torch

import tracer

PARAMETERS = (2, 20, 100, 400)
STEPS = 20  # a sample
ROUNDS = 120


class Case:
    """An optimizer with so many parameters, traced in this way or not at all."""

    def __init__(self, way: str, parameters: int) -> None:
        self.optimizer = torch.optim.SGD(
            [torch.nn.Parameter(torch.zeros(4)) for _ in range(parameters)], lr=0.01
        )
        for parameter in self.optimizer.param_groups[0]["params"]:
            parameter.grad = torch.ones_like(parameter)
        self.way = way
        self._seen = 0
        if way == "tracer":
            tracer.wrap(self.optimizer)
        if way == "hook":
            self.optimizer.register_step_post_hook(self._count)

    def _count(self, optimizer: Any, *given: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._seen += parameter.grad is not None

    @property
    def updates(self) -> int:
        """How many updates it saw."""
        return tracer.trace_of(self.optimizer).updates() if self.way == "tracer" else self._seen


def tables(arguments: argparse.Namespace) -> Iterator[str]:
    """A row for each number of parameters."""
    torch.set_num_threads(1)
    rows = []
    for parameters in PARAMETERS:
        cases = {way: Case(way, parameters) for way in ("untraced", "again", "hook", "tracer")}
        for case in cases.values():
            for _ in range(STEPS):
                case.optimizer.step()
        row: list[object] = [parameters]
        seen = [f"{cases[way].updates:,} of {STEPS * parameters:,}" for way in ("hook", "tracer")]
        if not arguments.quick:
            arms = {
                way: bench.timed(case.optimizer.step, STEPS, time.thread_time)
                for way, case in cases.items()
            }
            taken = bench.interleaved(arms, ROUNDS)
            row.append(f"{1e6 * bench.spread(taken['untraced']).median:,.0f}")
            row += [bench.added(taken, way, "untraced").text(1) for way in list(arms)[1:]]
        rows.append([*row, *seen])
    head = ["parameters", "us a step, untraced", "us added: again", "a hook that counts", "tracer"]
    if arguments.quick:
        head = head[:1]
    yield bench.table([*head, "updates seen by the hook", "by tracer"], rows)


if __name__ == "__main__":
    bench.run(__doc__, tables)
