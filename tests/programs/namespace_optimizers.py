"""Trains each optimizer of a module of `tf.keras`, traced and not; prints a line of each.

Its arguments are the module, such as `optimizers.legacy`, and the optimizers to leave out. Which
Keras `tf.keras` is was settled by TF_USE_LEGACY_KERAS before this process started.
"""

import json
import operator
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tracer

STEPS = 4
NOT_ON_THEIR_OWN = ("LossScaleOptimizer", "MultiOptimizer", "Optimizer")


def optimizers(module: Any) -> dict[str, Any]:
    """The optimizer classes of `module` by name."""
    return {
        name: member
        for name in sorted(dir(module))
        if isinstance(member := getattr(module, name), type)
        if issubclass(member, module.Optimizer)
        if name not in (*NOT_ON_THEIR_OWN, *sys.argv[2:])
    }


def function(optimizer: Any) -> list[Any]:
    """`STEPS` steps of a `tf.function`: a table with sparse gradients, a kernel and a bias."""
    make = getattr(tf.keras, "Variable", tf.Variable)  # Keras 3 has variables of its own
    weights = [make(np.ones(shape, "float32")) for shape in ((5, 3), (3, 2), (2,))]

    @tf.function
    def step() -> None:
        rows = tf.IndexedSlices(tf.ones((2, 3)), tf.constant([1, 3]), tf.constant([5, 3]))
        pairs = zip((rows, tf.ones((3, 2)), tf.ones(2)), weights, strict=True)
        optimizer.apply_gradients(pairs)

    for _ in range(STEPS):
        step()
    return [np.asarray(weight).tolist() for weight in weights]


def fit(optimizer: Any) -> list[Any]:
    """`STEPS` steps of `model.fit` for weights like these."""
    layers = tf.keras.layers
    inputs = tf.keras.Input((2,), dtype="int32")
    table = layers.Embedding(5, 3, embeddings_initializer="ones")
    dense = layers.Dense(1, kernel_initializer="ones")
    model = tf.keras.Model(inputs, dense(layers.Flatten()(table(inputs))))
    model.compile(optimizer, "mse", jit_compile=False)
    rows, goals = np.arange(4, dtype="int32").reshape(2, 2), np.ones((2, 1), "float32")
    model.fit(rows, goals, batch_size=2, epochs=STEPS, verbose=0)
    return [weight.tolist() for weight in model.get_weights()]


def report(cls: Any, train: Callable[[Any], list[Any]]) -> None:
    """Train with the tracer and without, and print what there was to count and what was counted."""
    plain, traced = cls(), tracer.wrap(cls())
    same = train(plain) == train(traced)
    trace = tracer.trace_of(traced)
    line = {
        "optimizer": cls.__name__,
        "package": cls.__module__.partition(".")[0],
        "kind": trace.optimizers[0].kind,
        "way": train.__name__,
        "same weights": same,
        "iterations": int(traced.iterations),
        "steps": trace.steps,
        "dense": trace.updates("dense"),
        "sparse": trace.updates("sparse"),
        "notes": list(trace.notes),
    }
    print(json.dumps(line))


found = optimizers(operator.attrgetter(sys.argv[1])(tf.keras))
for cls in found.values():
    report(cls, function)
report(found["Adam"], fit)
