"""Find parameters that move where a mask zeroes the gradient, by weight decay or momentum.

It runs if effects are recorded, on the CPU, where copies from before each step exist. Most
parameters need one look: in the next step, other elements are 0, or none. Elements that are 0 in
all steps were masked out. Whole rows or columns of zeros do not count: an input that is always 0, a
dead unit or an unused word makes them too. A gradient that is 0 as a whole is an effect: see
`tracer.backends.torch.effects`.
"""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any
from weakref import ref

import torch

from tracer.backends.torch import compat
from tracer.backends.torch.effects import is_held_back
from tracer.backends.torch.gradients import after_backward
from tracer.core.calls import Call
from tracer.core.collectors import Collector
from tracer.model.rates import DRIFT
from tracer.model.records import Remark

MIN_PART = 0.1  # least fraction of masked elements
MAX_PASSES = 10  # most backward passes after which the gradient is compared again


class Drift(Collector):
    """The parameters of one recorder whose gradients are 0 in the same places in all steps."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self._zeros: dict[int, Any] = {}
        """By variable, where its gradient was 0 in all steps; None if there is no such place."""
        self._steps: Counter[int] = Counter()
        self._moved: Counter[int] = Counter()
        """By variable, the steps with the same zeros so far, and how many of them moved these."""
        self._masked = set[int]()
        """Variables with gradients other than 0 there after `backward`: the program masks later."""

    def step_compared(self, call: Call) -> None:
        """Compare where the gradients are 0, and whether the values moved there."""
        for index, held in call.before.items():
            if self._zeros.get(index, self) is not None:
                parameter = held.variable()
                gradient = None if parameter is None else parameter.grad
                # In a shard, all elements may be 0 while the whole gradient is not.
                whole = gradient is not None and not compat.is_flattened(parameter)
                if whole and held.before is not None:
                    self._look(index, held.before, parameter, gradient)

    def block_begins(self) -> None:
        """Start over."""
        self._zeros, self._steps, self._moved, self._masked = {}, Counter(), Counter(), set()

    def remarks(self) -> Iterator[Remark]:
        """The parameters that moved, and how many of their elements are masked."""
        rows = self.root.variables.rows
        for key, zeros in self._zeros.items():
            if zeros is not None and self._moved[key] and key in self._masked:
                yield Remark(
                    DRIFT,
                    detail=f"{int(zeros.sum()):,} of {zeros.numel():,}",
                    variables=(rows[key].name,),
                    count=self._moved[key],
                    of=self._steps[key],
                )

    def _look(self, index: int, before: Any, parameter: Any, gradient: Any) -> None:
        known = self._zeros.get(index)
        plain = type(gradient) is torch.Tensor and gradient.layout is torch.strided
        zeros = gradient == 0 if plain and not is_held_back(gradient) else None
        if zeros is not None and known is None:
            known = zeros if _is_masked(zeros, gradient, parameter) else None
            if known is not None:
                after_backward(partial(self._look_again, index, ref(parameter), MAX_PASSES))
        elif zeros is None or not torch.equal(known, zeros):
            known = None
        self._zeros[index] = known
        if known is not None:
            self._steps[index] += 1
            self._moved[index] += bool(((before != parameter.detach()) & known).any())

    def _look_again(self, index: int, reference: "ref[Any]", passes: int) -> None:
        """After `backward`, check whether the gradient is other than 0 where a step found zeros."""
        parameter, zeros = reference(), self._zeros.get(index)
        if parameter is None or zeros is None:
            return
        if parameter.grad is not None and parameter.grad[zeros].any():
            self._masked.add(index)
        elif passes > 1:
            after_backward(partial(self._look_again, index, reference, passes - 1))


def _is_masked(zeros: Any, gradient: Any, parameter: Any) -> bool:
    """True if the zeros look like a mask that the program applied to the gradient."""
    is_written = parameter.requires_grad and gradient._version > 0
    if not is_written or zeros.ndim < 2 or zeros.all() or zeros.sum() < MIN_PART * zeros.numel():
        return False
    rest = ~zeros.flatten(1)
    return not torch.equal(rest, rest.any(1, keepdim=True) & rest.any(0, keepdim=True))
