"""Which line of the program made an optimizer."""

import inspect
from typing import Any

import pytest
import torch

import tracer
from tracer.model.trace import Trace


def weight() -> Any:
    return torch.nn.Parameter(torch.ones(2))


def step(optimizer: Any) -> None:
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def made_in(trace: Trace) -> list[str]:
    return [each.made for each in trace.optimizers]


class Derived(torch.optim.SGD):  # type: ignore[misc]
    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.more = 1


@pytest.mark.parametrize("cls", [torch.optim.Adam, Derived])
def test_it_is_where_it_was_made_and_not_where_it_steps(cls: Any) -> None:
    before = cls([weight()], lr=0.1)
    with tracer.record() as recording:
        made = cls([weight()], lr=0.1)
        frame = inspect.currentframe()
        assert frame is not None
        line = f"test_lines.py:{frame.f_lineno - 3}"
        step(made)
        step(before)
    (first, second) = made_in(recording.trace())
    assert first.endswith(line) and second == ""
    assert torch.optim.Optimizer.__init__.__name__ == "__init__"
