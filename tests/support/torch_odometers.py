"""Optimizers of PyTorch that count by themselves: the weights say how often each was updated."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch


class Odometer(torch.optim.Optimizer):  # type: ignore[misc]
    """Adds 1 to each parameter with a gradient; to row 0 of one whose gradient is sparse."""

    def __init__(self, parameters: Any, lr: float = 1.0) -> None:
        super().__init__(parameters, {"lr": lr})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        moved = parameter[0] if parameter.grad.is_sparse else parameter
                        moved.add_(1)
        return loss


class Around(torch.optim.Optimizer):  # type: ignore[misc]
    """Has the parameter groups of another optimizer, and steps with it."""

    def __init__(self, base: torch.optim.Optimizer) -> None:
        super().__init__(base.param_groups, {})
        self.base, self.steps = base, 0

    def step(self, closure: Any = None) -> Any:
        return self.base.step(closure)


def in_threads(work: Callable[[int], object], count: int = 4) -> None:
    """Run `work` in threads, each of which gets its number."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def zeros(count: int = 3) -> list[torch.nn.Parameter]:
    """Parameters that are 0."""
    return [torch.nn.Parameter(torch.zeros(2)) for _ in range(count)]


def give(parameters: Sequence[torch.nn.Parameter], value: float = 1.0) -> None:
    """Give each parameter a gradient."""
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, value)


def readings(parameters: Sequence[torch.nn.Parameter]) -> list[int]:
    """How often each parameter was updated, by an odometer."""
    return [int(parameter.detach().flatten()[0]) for parameter in parameters]


class Moves:
    """How often the weights changed, for optimizers that are no odometer."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self.parameters = parameters
        self.by_step: list[int] = []
        self._before = self._copies()

    def look(self) -> None:
        """One more step has been asked for."""
        now = self._copies()
        self.by_step.append(
            sum(not torch.equal(a, b) for a, b in zip(now, self._before, strict=True))
        )
        self._before = now

    def _copies(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self.parameters]
