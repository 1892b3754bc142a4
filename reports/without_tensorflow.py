"""How often is an update called, run and kept on JAX and on PyTorch?

`KERAS_BACKEND=jax python reports/make.py without_tensorflow`, and the same with `torch`, measure
the installed backends; the rows of the other one stay. The optimizers are odometers: a counter in
the method counts the calls of Python, a callback of the framework the executions, and the weights,
to which each update adds 1, the kept updates. The tracer counts as well.
"""

import importlib.util
import os
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from make import kept, table

import tracer

PACKAGES = ("keras",)
BATCHES = 8
BACKENDS = {
    "jax": "Keras on JAX",
    "torch": "Keras on PyTorch",
    "torch.optim": "`torch.optim`",
}


class Counts(msgspec.Struct, frozen=True):
    """Calls of Python, executions, and updates that were kept."""

    calls: int
    executions: int
    kept: int


class Row(msgspec.Struct, frozen=True):
    """One way to train, with a model of four variables."""

    backend: str
    trained: str
    method: str
    steps: int
    tracer: Counts
    oracle: Counts


def here() -> list[str]:
    """The backends that can be measured in this process."""
    keras = os.environ["KERAS_BACKEND"]
    return [keras] + ["torch.optim"] * (importlib.util.find_spec("torch") is not None)


def measure() -> list[Row]:
    """Measure what this process can; the rows of the others stay."""
    rows = [row for row in kept("without_tensorflow", Row) if row.backend not in here()]
    rows += [row for backend in here() for row in measured(backend)]
    return sorted(rows, key=lambda row: [*BACKENDS].index(row.backend))


def measured(backend: str) -> list[Row]:
    """Train in every way of the report."""
    return list({"jax": on_jax, "torch": on_torch, "torch.optim": of_torch}[backend]())


def data(overflows: bool = False) -> tuple[Any, Any]:
    """Batches of four examples; with `overflows` the third one makes all gradients infinite."""
    import numpy as np

    x, y = np.ones((4 * BATCHES, 4), "float32"), np.ones((4 * BATCHES, 1), "float32")
    if overflows:
        y[8] = np.inf
    return x, y


def keras_model(optimizer: Any, **options: Any) -> Any:
    """Two `Dense` layers: four variables, which begin at 0."""
    import keras

    layers = [keras.layers.Dense(n, kernel_initializer="zeros") for n in (3, 1)]
    made = keras.Sequential([keras.Input((4,)), *layers])
    made.compile(optimizer, "mse", **options)
    return made


def keras_row(
    backend: str,
    trained: str,
    odometer: Any,
    train: Callable[[Any, Any], list[Any]],
    loss_scale: bool = False,
    **options: Any,
) -> Row:
    """Train a model of Keras; `train` gives what its weights are in the end."""
    import keras
    import numpy as np

    outer = keras.mixed_precision.LossScaleOptimizer(odometer) if loss_scale else odometer
    optimizer = tracer.wrap(outer)
    weights = train(keras_model(optimizer, **options), optimizer)
    trace = tracer.trace_of(optimizer)
    assert trace.complete, trace.notes
    method = odometer.counts
    moved = sum(round(float(np.ravel(np.asarray(each))[0])) for each in weights)
    return Row(
        backend,
        trained,
        method,
        trace.steps,
        Counts(trace.calls(method), trace.executions(method), trace.updates()),
        Counts(odometer.called, odometer.ran[0], moved),
    )


def fitted(overflows: bool = False) -> Callable[[Any, Any], list[Any]]:
    """One epoch of `model.fit`."""

    def train(model: Any, optimizer: Any) -> list[Any]:
        x, y = data(overflows)
        model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
        return list(model.get_weights())

    return train


def counting() -> Any:
    """A class of Keras that notes how often Python called it, and how often it ran."""
    import keras

    class Counting(keras.optimizers.Optimizer):  # type: ignore[misc]
        counts = "update_step"

        def __init__(self, **options: Any) -> None:
            super().__init__(learning_rate=1.0, **options)
            object.__setattr__(self, "called", 0)
            object.__setattr__(self, "ran", [0])

    return Counting


def on_jax() -> Iterator[Row]:
    """Keras on JAX."""
    import jax
    import keras

    class Odometer(counting()):  # type: ignore[misc]
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            object.__setattr__(self, "called", self.called + 1)
            jax.debug.callback(self._note, gradient.ravel()[0])
            self.assign_add(variable, keras.ops.ones(variable.shape, variable.dtype))

        def _note(self, _: Any) -> None:
            self.ran[0] += 1

    rows: list[tuple[str, Any, dict[str, Any], dict[str, Any]]] = [
        ("`fit`", fitted(), {}, {}),
        ("`fit`, run eagerly", fitted(), {}, {"run_eagerly": True}),
        ("`fit`, 4 steps accumulated", fitted(), {"gradient_accumulation_steps": 4}, {}),
        ("`fit`, loss scale, 1 step overflows", fitted(overflows=True), {}, {"loss_scale": True}),
    ]
    for trained, train, told, options in rows:
        yield keras_row("jax", trained, Odometer(**told), train, **options)


def on_torch() -> Iterator[Row]:
    """Keras on PyTorch, with an optimizer as Keras makes its own."""
    import torch
    from keras.src.backend.torch.optimizers.torch_parallel_optimizer import TorchParallelOptimizer

    class Odometer(TorchParallelOptimizer, counting()):  # type: ignore[misc]
        counts = "_parallel_update_step"

        def _parallel_update_step(self, grads: Any, variables: Any, learning_rate: Any) -> None:
            object.__setattr__(self, "called", self.called + len(variables))
            self.ran[0] += len(variables)
            torch._foreach_add_([each.value for each in variables], 1.0)

    yield keras_row("torch", "`fit`", Odometer(), fitted())
    accumulating = Odometer(gradient_accumulation_steps=4)
    yield keras_row("torch", "`fit`, 4 steps accumulated", accumulating, fitted())
    overflow = "`fit`, loss scale, 1 step overflows"
    yield keras_row("torch", overflow, Odometer(), fitted(overflows=True), loss_scale=True)


def of_torch() -> Iterator[Row]:
    """PyTorch's own optimizers: the weights are compared before and after each batch."""
    yield torch_row("a loop")
    yield torch_row("a loop, 4 batches accumulated by hand", every=4)
    yield torch_row("`GradScaler`, 1 batch overflows", scaler=True)
    yield torch_row("`GradScaler`, fused, 1 batch overflows", scaler=True, fused=True)


def torch_row(
    trained: str,
    *,
    every: int = 1,
    scaler: bool = False,
    fused: bool = False,
) -> Row:
    """A loop of PyTorch with Adam."""
    import torch

    called = 0

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))
    optimizer = tracer.wrap(torch.optim.Adam(model.parameters(), 0.1, fused=fused or None))
    plain = optimizer.step

    def counted(*given: Any, **named: Any) -> Any:
        nonlocal called
        called += 1
        return plain(*given, **named)

    optimizer.step = counted
    scale = torch.amp.GradScaler("cpu", enabled=scaler)
    x, y = (torch.from_numpy(each).reshape(BATCHES, 4, -1) for each in data(overflows=scaler))
    moved = 0
    for number in range(BATCHES):
        before = [each.detach().clone() for each in model.parameters()]
        scale.scale(((model(x[number]) - y[number]) ** 2).mean()).backward()
        if (number + 1) % every == 0:
            scale.step(optimizer)
            scale.update()
            optimizer.zero_grad()
        pairs = zip(before, model.parameters(), strict=True)
        moved += sum(not torch.equal(old, new) for old, new in pairs)
    trace = tracer.trace_of(optimizer)
    assert trace.complete, trace.notes
    updates = trace.updates()
    return Row(
        "torch.optim",
        trained,
        "step",
        trace.steps,
        Counts(trace.calls("step"), updates, updates),
        Counts(called, moved, moved),
    )


def page(rows: list[Row]) -> str:
    """The answer and all rows."""
    lines: list[dict[str, object]] = [
        {
            "backend": BACKENDS[row.backend],
            "trained": row.trained,
            "method": f"`{row.method}`",
            "steps": row.steps,
            "calls": row.tracer.calls,
            "executed": row.tracer.executions,
            "kept": row.tracer.kept,
        }
        for row in rows
    ]
    return f"""# How often does an update run on JAX and on PyTorch?

**Once a step for each variable with a gradient, as on TensorFlow, unless the step is skipped or
only accumulates.**

- **Keras on JAX**: Python is called while `jax.jit` traces the step, 4 times for four variables,
  however many steps follow. A step that only accumulates computes all updates and discards them:
  they are executed and not kept. A step that a loss scale skips computes none.
- **Keras on PyTorch**: each call is executed at once. Keras's own optimizers update all variables
  in one call of `_parallel_update_step`, counted once for each variable. A step that accumulates
  or is skipped calls nothing.
- **`torch.optim`**: one call of `step` updates all parameters. `GradScaler` omits the call if a
  gradient is infinite. With a fused optimizer it calls `step`, and the kernel does nothing.

{table(lines)}

- A model of two layers, four variables, and {BATCHES} batches. *Calls* are those of Python,
  *executed* is how often the update ran, *kept* how many updates the weights have in the end.
- What else says so: a plain counter in the method counts the calls, a callback of JAX the
  executions, and the weights the kept updates. The JSON file has both counts of each row.
- `torch.optim` has no step in a batch that only accumulates: nothing is called.
"""
