"""A jitted step of JAX that runs again and again, for the benchmarks of what is counted in one."""

from collections.abc import Callable
from typing import Any

import bench
import jax


class Steps:
    """A step with a state and gradients of its own; the state is donated."""

    def __init__(self, step: Callable[..., Any], state: tuple[Any, Any], gradients: Any) -> None:
        """`step` takes both parts of the state and the gradients, and gives both parts back."""
        self._step = jax.jit(step, donate_argnums=(0, 1))
        self._state, self._gradients = state, gradients
        self.number = 0

    def run(self, number: int) -> None:
        """So many steps, until their results are there."""
        for _ in range(number):
            self._state = self._step(*self._state, self._gradients)
        jax.block_until_ready(self._state)
        self.number += number

    def sample(self, number: int, clock: Callable[[], float]) -> bench.Sample:
        """What one of so many steps takes by that clock."""
        run: Callable[[], None] = lambda: self.run(number)  # noqa: E731
        timed = bench.timed(run, 1, clock)
        return lambda: timed() / number
