"""What the questions share: the machine, small models and their training, and Markdown.

Import it before TensorFlow, which reads the environment once.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# With fewer threads, MirroredStrategy over logical CPUs can wait for itself for good on 2 cores.
os.environ["TF_NUM_INTEROP_THREADS"] = "16"
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf
import tf_keras

import tracer

KERAS = {"legacy": tf_keras, "keras2": tf_keras, "keras3": keras}
"""The Keras whose models an optimizer of each kind trains."""
OPTIMIZERS = {
    "legacy": tf_keras.optimizers.legacy,
    "keras2": tf_keras.optimizers,
    "keras3": keras.optimizers,
    "v1": tf.compat.v1.train,
}
"""Where the optimizers of each kind are."""
LABELS = {
    "legacy": "legacy",
    "keras2": "Keras 2.11+",
    "keras3": "Keras 3",
    "v1": "TensorFlow 1",
}
"""What people call them."""
WHERE = """*Legacy* is `tf_keras.optimizers.legacy`, and `tf.keras.optimizers.Optimizer` up to
TensorFlow 2.10. *Keras 2.11+* is `tf_keras.optimizers`. *Keras 3* is `keras.optimizers`, and
`tf.keras.optimizers` since TensorFlow 2.16. *TensorFlow 1* is `tf.compat.v1.train`."""
"""Where the reader finds them."""


REPLICAS = 3
FEATURES, OUTPUTS = 8, 2

Layers = Callable[[Any, Any], Any]
"""The outputs of a model, given the `layers` module of a Keras and the inputs."""


def prepare() -> None:
    """Make the logical CPU devices that stand for replicas; call it before TensorFlow is used."""
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration() for _ in range(REPLICAS)],
    )


@cache
def strategy_of(replicas: int) -> Any:
    """The default strategy for one replica, else a mirrored one over so many CPU devices."""
    if replicas == 1:
        return tf.distribute.get_strategy()
    # Two strategies with different devices in a process must not share the collective ops.
    return tf.distribute.MirroredStrategy(
        [f"cpu:{index}" for index in range(replicas)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )


def build(kind: str, layers: Layers) -> Any:
    """A model of the Keras of `kind`, built for inputs of `FEATURES` small whole numbers."""
    inputs = KERAS[kind].Input((FEATURES,))
    return KERAS[kind].Model(inputs, layers(KERAS[kind].layers, inputs))


def in_turn(inputs: Any, *layers: Any) -> Any:
    """The outputs of `layers`, each of which gets those of the one before."""
    for layer in layers:
        inputs = layer(inputs)
    return inputs


def dense(count: int) -> Layers:
    """A model of so many Dense layers."""
    return lambda to, x: in_turn(x, *(to.Dense(4) for _ in range(count - 1)), to.Dense(OUTPUTS))


def embedding(to: Any, x: Any) -> Any:
    """A model of an embedding, a table of five rows, and a Dense layer."""
    return in_turn(x, to.Embedding(5, 3), to.Flatten(), to.Dense(OUTPUTS))


def data(number: int) -> tuple[Any, Any]:
    """Inputs, small whole numbers so that an embedding can take them, and targets."""
    rng = np.random.default_rng(0)
    inputs = rng.integers(0, 5, (number, FEATURES)).astype("float32")
    return inputs, rng.random((number, OUTPUTS), "float32")


def fit(
    kind: str,
    optimizer: Any,
    layers: Layers,
    *,
    batch: int = 4,
    batches: int = 8,
    replicas: int = 1,
    **options: Any,
) -> tracer.Trace:
    """The trace of one epoch of `model.fit` on a new model; the options are those of `train`."""
    with strategy_of(replicas).scope():
        model = build(kind, layers)
    train(model, optimizer, batch=batch, batches=batches, **options)
    return tracer.trace_of(optimizer)


def train(
    model: Any,
    optimizer: Any,
    *,
    batch: int,
    batches: int,
    overflows: int | None = None,
    **compile_options: Any,
) -> None:
    """One epoch of `model.fit` with the optimizer, which is wrapped.

    `overflows` is a batch, counted from 0, with a target that makes all gradients infinite.
    """
    inputs, targets = data(batch * batches)
    if overflows is not None:
        targets[overflows * batch] = np.inf
    model.compile(tracer.wrap(optimizer), "mse", **compile_options)
    model.fit(inputs, targets, batch_size=batch, shuffle=False, verbose=0)


# Reading a trace.


def apply_methods(trace: tracer.Trace) -> list[str]:
    """The apply methods that were called, `_resource_apply_dense` before the sparse one.

    `..._duplicate_indices` is left out where all it did was to call the sparse method.
    """
    names = {method.name for method in trace.methods if method.role == "apply"}
    suffix = "_duplicate_indices"
    return sorted(n for n in names if not n.endswith(suffix) or n.removesuffix(suffix) not in names)


def executions(trace: tracer.Trace, method: str) -> int:
    """How often the work of `method` ran; 0 for a method that was never called."""
    return trace.executions(method) if method in {m.name for m in trace.methods} else 0


def calls(trace: tracer.Trace) -> int:
    """How often Python called the apply methods."""
    return sum(trace.calls(method) for method in apply_methods(trace))


def graphs(trace: tracer.Trace) -> tuple[int, int]:
    """How many graphs with a step were built, and how many of them never ran."""
    steps = [block for block in trace.blocks if block.step and block.replica == 0]
    return sum(block.graphs for block in steps), sum(block.idle for block in steps)


# Writing Markdown.


def table(columns: Mapping[str, Sequence[object]]) -> str:
    """A Markdown table of `columns` by their heads; columns of numbers are set to the right."""
    rules = [
        "---:" if all(isinstance(cell, int | float) for cell in cells) else "---"
        for cells in columns.values()
    ]
    rows = [map(shown, row) for row in zip(*columns.values(), strict=True)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, rules, *rows))


def shown(value: object) -> str:
    """A value as a reader wants it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def each_step(number: int, steps: int) -> float | int:
    """So many a step; a whole number where it is one."""
    return number // steps if number % steps == 0 else number / steps


def made_with() -> str:
    """The versions that a report was made with."""
    found = tracer.trace_of(tracer.wrap(keras.optimizers.SGD())).environment
    names = ("python", "tensorflow", "keras", "tf_keras")
    return ", ".join(f"{name} {found[name]}" for name in names)
