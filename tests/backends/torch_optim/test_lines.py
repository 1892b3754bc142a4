"""Which line of the program made an optimizer."""

import inspect
from pathlib import Path
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


def test_a_line_numbers_its_optimizers_as_it_makes_them() -> None:
    """Whatever the order of their first steps is, and if one makes none."""
    for _ in range(2):  # each recording numbers them from 1
        with tracer.record() as recording:
            made = [torch.optim.SGD([weight()], lr=0.1) for _ in range(3)]
            step(made[2])
            step(made[1])
        numbers = sorted(each.made_as for each in recording.trace().optimizers)
        assert numbers == [(1, 3), (2, 3), (3, 3)]


def test_what_a_package_makes_has_the_line_that_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a trainer that makes it of a name, or calls `configure_optimizers`."""
    package = tmp_path / "site-packages"
    package.mkdir()
    (package / "some_trainer.py").write_text(
        "import torch\n"
        "def train(parameters, configure=torch.optim.SGD):\n"
        "    return configure(parameters, lr=0.1)\n"
    )
    monkeypatch.syspath_prepend(package)
    import some_trainer  # type: ignore[import-not-found]

    def configure(parameters: Any, lr: float) -> Any:
        return torch.optim.Adam(parameters, lr=lr)

    with tracer.record() as recording:
        step(some_trainer.train([weight()]))
        step(some_trainer.train([weight()], configure))
    frame = inspect.currentframe()
    assert frame is not None
    lines = [frame.f_lineno - 4, configure.__code__.co_firstlineno + 1]
    numbers = [int(each.rpartition(":")[2]) for each in made_in(recording.trace())]
    assert numbers == lines
