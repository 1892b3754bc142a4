"""Odometer optimizers: the weights themselves count how often they were updated.

An odometer adds exactly 1 to a variable each time it is applied: to every element for a dense
gradient, to row 0 for a sparse one, whatever the gradient's values and indices are. Weights that
start at 0 then count the executions on each replica, in every way of running, without the help of
the tracer: what the tracer says is compared with them, never with itself.

Python calls are counted beside it, in `PythonCalls`, for the same reason.
"""

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from support.libraries import Keras3Optimizer, is_keras3, keras2, keras3

KINDS = ("legacy", "keras2", "keras3", "v1")

DENSE_METHOD = {
    "legacy": "_resource_apply_dense",
    "keras2": "update_step",
    "keras3": "update_step",
    "v1": "_resource_apply_dense",
}
"""What applies a dense gradient, by the kind of optimizer."""


class PythonCalls:
    """How often Python called the apply methods of an odometer, by `(method, context)`."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def add(self, method: str) -> None:
        """Count a call of `method`, eager or while a graph is built."""
        context = "eager" if tf.executing_eagerly() else "tracing"
        with self._lock:
            self._counts[method, context] += 1

    def forget(self) -> None:
        """Count from 0 again."""
        with self._lock:
            self._counts.clear()

    def counts(self) -> dict[tuple[str, str], int]:
        """The counts so far."""
        with self._lock:
            return dict(self._counts)


class Boom(Exception):
    """What a broken apply method raises."""


def add_one(variable: Any, *, sparse: bool) -> Any:
    """Add 1 to every element of `variable`, or to its row 0 only; one atomic `assign_add`."""
    amount = np.ones(variable.shape, variable.dtype.as_numpy_dtype)
    if sparse:
        amount[1:] = 0
    return variable.assign_add(tf.constant(amount), read_value=False)


class LegacyOdometer(keras2.optimizers.legacy.Optimizer):  # type: ignore[misc]
    """The odometer of the kind `legacy`."""

    def __init__(
        self, name: str = "Odometer", calls: PythonCalls | None = None, **options: Any
    ) -> None:
        super().__init__(name, **options)
        self.calls = calls or PythonCalls()

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        self.calls.add("_resource_apply_dense")
        return add_one(var, sparse=False)

    def _resource_apply_sparse(
        self, grad: Any, var: Any, indices: Any, apply_state: Any = None
    ) -> Any:
        self.calls.add("_resource_apply_sparse")
        return add_one(var, sparse=True)

    def get_config(self) -> dict[str, Any]:
        return dict(super().get_config())


class Keras2Odometer(keras2.optimizers.Optimizer):  # type: ignore[misc]
    """The odometer of the kind `keras2`.

    `jit_compile` is set after construction: without a GPU the constructor turns it off.
    """

    def __init__(
        self,
        name: str = "odometer",
        calls: PythonCalls | None = None,
        jit_compile: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(name=name, jit_compile=False, **options)
        self._learning_rate = self._build_learning_rate(0.1)
        self.jit_compile = jit_compile
        self.calls = calls or PythonCalls()

    def update_step(self, gradient: Any, variable: Any) -> None:
        self.calls.add("update_step")
        add_one(variable, sparse=isinstance(gradient, tf.IndexedSlices))


class Keras3Odometer(Keras3Optimizer):  # type: ignore[misc]
    """The odometer of the kind `keras3`, where there is a Keras 3."""

    def __init__(
        self, name: str = "odometer", calls: PythonCalls | None = None, **options: Any
    ) -> None:
        super().__init__(learning_rate=0.1, name=name, **options)
        self.calls = calls or PythonCalls()

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.calls.add("update_step")
        add_one(variable, sparse=isinstance(gradient, tf.IndexedSlices))


class V1Odometer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """The odometer of the kind `v1`, for resource variables and for reference variables."""

    def __init__(
        self, name: str = "V1Odometer", calls: PythonCalls | None = None, **options: Any
    ) -> None:
        super().__init__(use_locking=True, name=name, **options)
        self.calls = calls or PythonCalls()

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        self.calls.add("_apply_dense")
        return add_one(var, sparse=False)

    def _resource_apply_dense(self, grad: Any, handle: Any) -> Any:
        self.calls.add("_resource_apply_dense")
        return add_one(handle, sparse=False)

    def _apply_sparse(self, grad: Any, var: Any) -> Any:
        self.calls.add("_apply_sparse")
        return add_one(var, sparse=True)

    def _resource_apply_sparse(self, grad: Any, handle: Any, indices: Any) -> Any:
        self.calls.add("_resource_apply_sparse")
        return add_one(handle, sparse=True)


ODOMETERS: dict[str, Any] = {
    "legacy": LegacyOdometer,
    "keras2": Keras2Odometer,
    "keras3": Keras3Odometer,
    "v1": V1Odometer,
}


def odometer_applied_twice(kind: str, **options: Any) -> Any:
    """An odometer whose `apply_gradients` is overridden and calls the inherited one twice."""
    base: Any = ODOMETERS[kind]

    class Twice(base):  # type: ignore[misc]
        def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
            grads_and_vars = list(grads_and_vars)
            super().apply_gradients(grads_and_vars, *args, **kwargs)
            return super().apply_gradients(grads_and_vars, *args, **kwargs)

    return Twice(**options)


class Reading(NamedTuple):
    """What an odometer shows: how many dense and how many sparse updates a variable had."""

    dense: int
    sparse: int = 0

    def plus(self, other: "Reading") -> "Reading":
        """Both together."""
        return Reading(self.dense + other.dense, self.sparse + other.sparse)

    def minus(self, other: "Reading") -> "Reading":
        """What came after the other one."""
        return Reading(self.dense - other.dense, self.sparse - other.sparse)


def raw(variable: Any) -> Any:
    """The TensorFlow variable that `variable` is, or that a Keras 3 variable holds."""
    return variable.value if is_keras3(variable) else variable


def components(variable: Any) -> tuple[Any, ...]:
    """The TensorFlow variables behind `variable`, one for each replica that has its own."""
    return tuple(getattr(raw(variable), "values", (raw(variable),)))


def read(variable: Any) -> tuple[Reading, ...]:
    """The odometer of `variable`, on each replica."""
    return tuple(reading(component.numpy()) for component in components(variable))


def reading(value: Any) -> Reading:
    """The odometer that the array `value` shows, which must have two rows to show sparse updates.

    Raises `AssertionError` if it is no odometer's array: elements of a row that differ, or counts
    that are not whole.
    """
    rows = np.asarray(value, np.float64).reshape(len(value), -1)
    assert (rows == rows[:, :1]).all(), f"the elements of a row differ: {value}"
    assert (rows[1:] == rows[-1]).all(), f"rows other than row 0 differ: {value}"
    assert (rows == rows.round()).all(), f"a part of an update: {value}"
    return Reading(int(rows[-1, 0]), int(rows[0, 0] - rows[-1, 0]))


SHAPES: dict[str, tuple[int, ...]] = {
    "table": (3, 2),
    "kernel": (2, 2),
    "twin": (2, 2),
    "bias": (2,),
}
"""The hand-made variables. `kernel` and `twin` can only be told by their identity."""


def make_variables(kind: str) -> dict[str, Any]:
    """The hand-made variables at 0, of the class that users of `kind` have."""
    if kind == "keras3":
        return {
            name: keras3.Variable(np.zeros(shape, "float32"), name=name)
            for name, shape in SHAPES.items()
        }
    return {name: tf.Variable(tf.zeros(shape), name=name) for name, shape in SHAPES.items()}


def gradients(variables: dict[str, Any], factor: Any = 1.0) -> list[tuple[Any, Any]]:
    """A gradient for each of the hand-made `variables`; that of `table` repeats an index."""
    factor = tf.cast(factor, tf.float32)
    pairs: list[tuple[Any, Any]] = []
    for name, variable in variables.items():
        if name == "table":
            values, rows = tf.ones((3, 2)) * factor, tf.constant([1, 2, 2])
            pairs.append((tf.IndexedSlices(values, rows, tf.constant(SHAPES[name])), variable))
        else:
            pairs.append((tf.ones(SHAPES[name]) * factor, variable))
    return pairs


def loss(variables: Sequence[Any]) -> Any:
    """A loss that depends on all of `variables`, on the first one by `tf.gather` of some rows."""
    table, *others = map(raw, variables)
    total = tf.reduce_sum(tf.gather(table, [1, 2, 2]))
    for other in others:
        total += tf.reduce_sum(other)
    return total
