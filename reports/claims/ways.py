"""Ways to measure a claim."""

from collections.abc import Callable
from functools import cache
from typing import Any

import tensorflow as tf
from measuring import OPTIMIZERS, Layers, dense, each_step, executions, fit

import tracer

DENSE, SPARSE = "_resource_apply_dense", "_resource_apply_sparse"
NO_ERROR = "no error"


def outcome(action: Callable[..., object], *args: Any, **kwargs: Any) -> str:
    """The name of the error that the action ends in."""
    try:
        action(*args, **kwargs)
    except Exception as error:
        return type(error).__name__
    return NO_ERROR


def error_or_not(action: Callable[..., object], *args: Any) -> str:
    """Whether the action ends in an error, in words."""
    return NO_ERROR if outcome(action, *args) == NO_ERROR else "an error"


def apply(optimizer: Any, *, sparse: bool = False, steps: int = 1) -> list[Any]:
    """Apply eager gradients of ones to two variables, or a sparse one to the first; gives them.

    The sparse gradient names a row twice.
    """
    variables = [tf.Variable(tf.zeros((3, 2)), name="table"), tf.Variable(tf.zeros(2), name="bias")]
    pairs = [(tf.ones_like(variable), variable) for variable in variables]
    if sparse:
        rows = tf.IndexedSlices(tf.ones((3, 2)), tf.constant([1, 2, 2]), tf.constant([3, 2]))
        pairs = [(rows, variables[0])]
    for _ in range(steps):
        optimizer.apply_gradients(pairs)
    return variables


@cache
def fitted(
    layers: Layers, kind: str = "legacy", name: str = "Adam", **options: Any
) -> tracer.Trace:
    """The trace of eight batches with a built-in optimizer."""
    return fit(kind, getattr(OPTIMIZERS[kind], name)(), layers, **options)


two_layers, three_layers = dense(2), dense(3)


def per_step(layers: Layers, method: str = DENSE, **options: Any) -> int | float:
    """The executions of a method in each step, on all replicas."""
    trace = fitted(layers, run_eagerly=True, **options)
    return each_step(executions(trace, method), trace.steps)


def share(kind: str, has: Callable[[type], bool]) -> str:
    """Which of the optimizers that come with Keras have something: all, none, or how many."""
    classes = built_in(kind)
    number = sum(map(has, classes))
    return {0: "none", len(classes): "all"}.get(number, f"{number} of {len(classes)}")


def built_in(kind: str) -> list[type]:
    """The optimizers of that kind that come with Keras."""
    base = OPTIMIZERS[kind].Optimizer
    found = [each for each in vars(OPTIMIZERS[kind]).values() if isinstance(each, type)]
    return [each for each in found if issubclass(each, base) and each is not base]
