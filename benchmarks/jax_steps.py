"""A jitted step of JAX that runs again and again, for the benchmarks of what is counted in one."""

import time
from collections.abc import Callable, Mapping
from statistics import mean
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


CLOCKS = {"the clock": time.perf_counter, "the processors": time.process_time}
"""The processors' time is that on all threads."""


def measured(
    makes: Mapping[str, Callable[[], Steps]], number: int, rounds: int
) -> dict[str, dict[str, list[float]]]:
    """What one of so many steps of each arm took in each round, by each of the `CLOCKS`.

    Of two arms that do the same with many arrays, that is faster which was made first: its arrays
    lie closer together. So all are made as often as there are arms, each first, second ... and last
    once, and a figure is the mean of these.
    """
    names = list(makes)
    taken: dict[str, dict[str, list[list[float]]]] = {
        of: {name: [] for name in names} for of in CLOCKS
    }
    for turn in range(len(names)):
        arms = {}
        for name in names[turn:] + names[:turn]:
            arms[name] = makes[name]()
            arms[name].run(number)  # compiles
        for of, clock in CLOCKS.items():
            samples = {name: arms[name].sample(number, clock) for name in names}
            for name, seconds in bench.interleaved(samples, rounds).items():
                taken[of][name].append(seconds)
    return {
        of: {name: [mean(each) for each in zip(*turns, strict=True)] for name, turns in own.items()}
        for of, own in taken.items()
    }
