"""What it costs to compare the weights before and after each step (`effects=True`).

    python benchmarks/effects.py                    # about 2 minutes, 1 GB
    python benchmarks/effects.py --quick torch      # only the memory that is held

An optimizer that is traced, and one that is traced with effects, in turn. The gradients are there
from the start, so that the step is the update alone: nothing hides what is added. The weights are
ten matrices of float32. The time is of all threads; each framework has a process of its own.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import bench
from instructions import installed

import tracer

MATRICES = 10
WEIGHTS = 10**7
ROUNDS = 12
CLOCK = time.perf_counter if os.environ.get("TRACER_TEST_DEVICE") == "gpu" else time.process_time
"""On a GPU the processor waits; let nothing else run on the machine."""

Step = Callable[[], object]


def shape_of(weights: int) -> tuple[int, int]:
    """The shape of each of the matrices."""
    rows = math.isqrt(weights // MATRICES)
    return rows, weights // MATRICES // rows


def of_tensorflow(name: str, weights: int, effects: bool) -> Step:
    """A function of one update."""
    import keras
    import tensorflow as tf

    variables = [keras.Variable(tf.zeros(shape_of(weights))) for _ in range(MATRICES)]
    optimizer = tracer.wrap(getattr(keras.optimizers, name)(0.01), effects=effects)
    optimizer.build(variables)
    gradient = tf.ones(shape_of(weights))
    made: Step = tf.function(
        lambda: optimizer.apply_gradients([(gradient, each) for each in variables]), autograph=False
    )
    waits = bool(tf.config.list_physical_devices("GPU"))
    return (lambda: (made(), tf.test.experimental.sync_devices())) if waits else made


def of_jax(name: str, weights: int, effects: bool) -> Step:
    """A jitted update, whose state is donated."""
    import jax

    jitted, held, gradients = jitted_update(name, weights, effects)
    state = [held]

    def step() -> None:
        state[0] = jax.block_until_ready(jitted(*state[0], gradients))

    return step


def jitted_update(name: str, weights: int, effects: bool) -> tuple[Any, tuple[Any, Any], Any]:
    """The update, the state that it is given and gives back, and the gradients."""
    import jax
    import jax.numpy as jnp
    import keras

    variables = [keras.Variable(jnp.zeros(shape_of(weights))) for _ in range(MATRICES)]
    optimizer: Any = tracer.wrap(getattr(keras.optimizers, name)(0.001), effects=effects)
    optimizer.build(variables)

    def step(values: Any, slots: Any, gradients: Any) -> Any:
        return optimizer.stateless_apply(slots, gradients, values)

    values, slots = (
        [jnp.array(each.value) for each in of] for of in (variables, optimizer.variables)
    )
    gradients = [jnp.ones_like(each) for each in values]
    return jax.jit(step, donate_argnums=(0, 1)), (values, slots), gradients


def of_torch(name: str, weights: int, effects: bool) -> Step:
    """A step of `torch.optim`."""
    import torch

    update = torch_optimizer(name, weights, effects).step

    def step() -> None:
        update()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return step


def torch_optimizer(name: str, weights: int, effects: bool) -> Any:
    """An optimizer whose parameters have gradients."""
    import torch

    torch.set_num_threads(1)
    where = "cuda" if torch.cuda.is_available() else "cpu"
    zeros = [torch.zeros(shape_of(weights), device=where) for _ in range(MATRICES)]
    parameters = [torch.nn.Parameter(each) for each in zeros]
    for each in parameters:
        each.grad = torch.ones_like(each)
    return tracer.wrap(getattr(torch.optim, name)(parameters, 0.01), effects=effects)


def held_by_jax(weights: int) -> int:
    """How many bytes more the program holds while it runs."""
    bytes_of = []
    for effects in (False, True):
        jitted, state, gradients = jitted_update("SGD", weights, effects)
        memory = jitted.lower(*state, gradients).compile().memory_analysis()
        bytes_of.append(memory.temp_size_in_bytes)
    return int(bytes_of[1] - bytes_of[0])


def held_by_torch(weights: int) -> int:
    """How many bytes of copies are held while a step runs."""
    from tracer.backends.torch.effects import Effects

    copied = []
    copy_of = Effects.copy_of

    def counting(self: Any, tensor: Any) -> Any:
        copy = copy_of(self, tensor)
        copied.append(0 if copy is None else copy.untyped_storage().nbytes())
        return copy

    optimizer = torch_optimizer("SGD", weights, True)
    Effects.copy_of = counting  # type: ignore[method-assign]
    try:
        optimizer.step()
    finally:
        Effects.copy_of = copy_of  # type: ignore[method-assign]
    return sum(copied)


STEPS = {"tensorflow": of_tensorflow, "jax": of_jax, "torch": of_torch}
HELD = {"jax": held_by_jax, "torch": held_by_torch}


def inside(name: str, quick: bool) -> list[list[object]]:
    """The rows of one framework."""
    if quick:
        return [[name, *_held(name, 10**6)]]
    rows: list[list[object]] = []
    for optimizer in ("SGD", "Adam"):
        arms = {}
        for arm in ("traced", "again", "effects"):
            step = STEPS[name](optimizer, WEIGHTS, arm == "effects")
            step()
            arms[arm] = bench.timed(step, 3, CLOCK)
        taken = bench.interleaved(arms, ROUNDS)
        ms = f"{1e3 * bench.spread(taken['traced']).median:.1f}"
        again, times = (bench.ratios(taken, arm, "traced") for arm in ("again", "effects"))
        if times.low > again.high:  # else the difference is noise
            rows.append([f"{name}, {optimizer}", ms, times.text(1)])
    return rows


def _held(name: str, weights: int) -> list[object]:
    rows, columns = shape_of(weights)
    return [4 * MATRICES * rows * columns, HELD[name](weights)]


def tables(arguments: argparse.Namespace) -> Iterator[str]:
    """What a step takes; with `quick` what memory it holds, where the framework says so."""
    if arguments.inside:
        print(json.dumps(inside(arguments.inside, arguments.quick)))
        sys.exit()
    header = ["", "ms a step", "with effects, times as long"]
    if arguments.quick:
        header = ["", "bytes of weights", "bytes held"]
    rows = []
    for name in arguments.frameworks or (HELD if arguments.quick else STEPS):
        if installed(name):
            command = [sys.executable, __file__, "--inside", name, *["--quick"] * arguments.quick]
            printed = subprocess.check_output(
                command, env={**os.environ, "KERAS_BACKEND": name}, text=True
            )
            rows += json.loads(printed.splitlines()[-1])
    yield bench.table(header, rows)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("frameworks", nargs="*", metavar="FRAMEWORK", help=", ".join(STEPS))
    parser.add_argument("--inside", help=argparse.SUPPRESS)


if __name__ == "__main__":
    bench.run(__doc__, tables, _options)
