"""Apply methods that assign nothing while they are traced: the weights themselves say so.

And those that do assign, be it what was there before: of them nothing may be said.
"""

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import tensorflow as tf
from support.findings_of import bad, found
from support.libraries import keras2, keras3, needs_keras3

import tracer
from tracer.backends.tensorflow.blocks import GraphBlocks

pytestmark = pytest.mark.wide(rest="sweep")

legacy = keras2.optimizers.legacy
STEPS = 3


class InVain:
    """A name is given to the result; what is returned is an op that does nothing."""

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        var = var - 0.1 * grad
        return tf.no_op()

    def _resource_apply_sparse(
        self, grad: Any, var: Any, indices: Any, apply_state: Any = None
    ) -> Any:
        var = var - 0.1 * tf.reduce_sum(grad)
        return tf.no_op()

    def get_config(self) -> dict[str, Any]:
        return {}


class Legacy(InVain, keras2.optimizers.legacy.Optimizer):  # type: ignore[misc]
    pass


class V1(InVain, tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    pass


class Keras2(keras2.optimizers.Optimizer):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__("Keras2")
        self._learning_rate = self._build_learning_rate(0.1)

    def update_step(self, gradient: Any, variable: Any) -> None:
        variable = variable - self.learning_rate * tf.convert_to_tensor(gradient)

    def get_config(self) -> dict[str, Any]:
        return {}


IN_VAIN: dict[str, Callable[[], Any]] = {
    "legacy": lambda: Legacy("Legacy"),
    "keras2": Keras2,
    "v1": lambda: V1(False, "V1"),
}

if keras3 is not None:

    class Keras3(keras3.optimizers.Optimizer):  # type: ignore[misc]
        """It keeps a momentum of its own, which does change."""

        def build(self, variables: Any) -> None:
            super().build(variables)
            self.momenta = [self.add_variable_from_reference(each, "m") for each in variables]

        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            momentum = self.momenta[self._get_variable_index(variable)]
            self.assign(momentum, momentum * 0.9 + tf.convert_to_tensor(gradient))
            variable = variable - learning_rate * momentum

    IN_VAIN["keras3"] = lambda: Keras3(0.1)


def variables(kind: str) -> list[Any]:
    make = keras3.Variable if kind == "keras3" else tf.Variable
    return [make(np.ones((4, 2), "float32")), make(np.ones((2,), "float32"))]


def gradients(chosen: list[Any]) -> list[tuple[Any, Any]]:
    sparse = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([0]), tf.constant([4, 2]))
    return [(sparse, chosen[0]), (tf.ones((2,)), chosen[1])]


def applying(optimizer: Any, pairs: list[tuple[Any, Any]]) -> Callable[[], None]:
    def step() -> None:
        optimizer.apply_gradients(pairs)

    return step


WAYS: dict[str, Callable[[Callable[[], Any]], Callable[[], Any]]] = {
    "eager": lambda step: step,
    "function": tf.function,
    "xla": partial(tf.function, jit_compile=True),
    "loop": lambda step: tf.function(
        lambda: tf.while_loop(lambda n: n < 1, lambda n: (step(), [n + 1])[1], [0])
    ),
    "branch": lambda step: tf.function(
        lambda: tf.cond(tf.random.uniform(()) < 2.0, step, lambda: None)
    ),
    "inner": lambda step: tf.function(lambda: tf.function(step)()),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", IN_VAIN)
def test_a_method_that_assigns_nothing(kind: str, way: str) -> None:
    optimizer, chosen = IN_VAIN[kind](), variables(kind)
    if "keras" in kind:
        optimizer.build(chosen)
    step = WAYS[way](applying(optimizer, gradients(chosen)))
    with tracer.assert_all_updated(chosen) as seen:
        for _ in range(STEPS):
            step()
    assert all((np.asarray(each) == 1).all() for each in chosen), "no weight changes"
    trace = seen.trace
    assert trace.complete, trace.notes
    method = "update_step" if "keras" in kind else "_resource_apply_dense"
    assert trace.executions(method) == STEPS * (2 if "keras" in kind else 1)
    assert trace.updates() == STEPS * 2, "an update is a call of an apply method that ran"
    named = [each.text for each in found(trace, "never-assigned")]
    assert bool(named) == (way != "eager")
    assert all("assigned nothing to " in text and "while it was traced" in text for text in named)
    assert {each.code for each in bad(trace)} == ({"never-assigned"} if named else set())


def all_optimizers() -> list[Any]:
    """Every optimizer that ships with TensorFlow and Keras; each fifth is quick."""
    packages = [keras2.optimizers, legacy, tf.compat.v1.train]
    packages += [] if keras3 is None else [keras3.optimizers]
    every = {
        f"{package.__name__}.{name}": getattr(package, name)
        for package in packages
        for name in sorted(dir(package))
        if name not in ("Optimizer", "LossScaleOptimizer", "MultiOptimizer")
        and "Proximal" not in name  # their kernels refuse a rate of 0
        and hasattr(getattr(package, name), "apply_gradients")
    }
    return [
        pytest.param(made, id=name, marks=[pytest.mark.long] if number % 5 else [])
        for number, (name, made) in enumerate(every.items())
    ]


@pytest.mark.parametrize("make", all_optimizers())
def test_a_rate_of_0_and_gradients_of_0_are_assigned(make: Any) -> None:
    try:
        optimizer = make(learning_rate=0.0)
    except (TypeError, ValueError) as error:  # it needs something else, as another optimizer
        pytest.skip(str(error))
    of_keras3 = keras3 is not None and issubclass(make, keras3.optimizers.Optimizer)
    kind = "keras3" if of_keras3 else ""
    chosen = variables(kind)
    zeros = [(tf.zeros_like(tf.convert_to_tensor(each)), each) for each in chosen]
    if hasattr(optimizer, "build"):
        optimizer.build(chosen)

    @tf.function
    def graph() -> None:
        optimizer.apply_gradients(zeros)

    with tracer.record() as recording:
        optimizer.apply_gradients(zeros)
        graph()
    trace = recording.trace()
    assert trace.complete, trace.notes
    assert trace.updates() == 4
    assert not found(trace, "never-assigned")


class Deciding(Legacy):
    """It assigns from the third step on, as one that accumulates or warms up does."""

    calls = 0

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        self.calls += 1
        if self.calls > 2:
            var.assign_sub(grad)
        return tf.no_op()


class ByPython(Deciding):
    """What assigns is Python code in a graph, of which the ops tell nothing."""

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        return tf.py_function(lambda gradient: var.assign_sub(gradient), [grad], tf.float32)


class ByPythonInCall(ByPython):
    """The same in a function that the method calls: its op is a call, not one of Python."""

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        return tf.function(super()._resource_apply_dense)(grad, var)


class ByCall(Deciding):
    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        @tf.function
        def inner() -> None:
            var.assign_sub(grad)

        inner()
        return tf.no_op()


class ByOp(Deciding):
    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        return tf.raw_ops.ResourceApplyGradientDescent(
            var=var.handle, alpha=tf.constant(0.1), delta=grad, use_locking=True
        )


class ByRow(Deciding):
    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        for row in range(2):
            var[row].assign(var[row] - grad[row])
        return tf.no_op()


@pytest.mark.parametrize("make", [Deciding, ByPython, ByPythonInCall, ByCall, ByOp, ByRow])
def test_a_method_that_assigns_in_the_end_assigns(make: Any) -> None:
    optimizer, weight = make("own"), tf.Variable([1.0, 1.0])
    optimizer.calls = 2  # else its graph holds nothing that assigns
    step = tf.function(applying(optimizer, [(tf.ones(2), weight)]))
    with tracer.assert_updates(optimizer, dense=1, per_step=True) as seen:
        for _ in range(STEPS):
            step()
    assert not found(seen.trace, "never-assigned")
    assert (weight.numpy() != 1).all()


def test_a_graph_that_assigns_and_one_that_does_not() -> None:
    """A method that any graph writes with is one that assigns."""
    optimizer, weight = Deciding("own"), tf.Variable([1.0, 1.0])
    steps = [tf.function(applying(optimizer, [(tf.ones(2), weight)])) for _ in range(2)]
    tracer.wrap(optimizer)
    optimizer.calls = -100
    steps[0]()
    assert weight.numpy().tolist() == [1, 1]
    assert found(tracer.trace_of(optimizer), "never-assigned")
    optimizer.calls = 100
    steps[1]()
    assert weight.numpy().tolist() == [0, 0]
    assert not found(tracer.trace_of(optimizer), "never-assigned")
    assert tracer.trace_of(optimizer).updates() == 2


def test_it_adds_no_op_to_a_graph() -> None:
    def ops() -> list[str]:
        optimizer, weight = tracer.wrap(Legacy("own")), tf.Variable([1.0, 1.0])
        optimizer.apply_gradients([(tf.ones(2), weight)])
        step = tf.function(applying(optimizer, [(tf.ones(2), weight)]))
        return [op.type for op in step.get_concrete_function().graph.get_operations()]

    with patch.object(GraphBlocks, "_find_idle"):
        expected = ops()
    assert ops() == expected


@needs_keras3
@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.long), 2])
def test_under_a_strategy(replicas: int) -> None:
    devices = [f"CPU:{number}" for number in range(replicas)]
    strategy = tf.distribute.MirroredStrategy(
        devices, cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    for make, idle in ((IN_VAIN["keras3"], True), (lambda: keras3.optimizers.Adam(0.0), False)):
        with strategy.scope():
            model = keras3.Sequential([keras3.layers.Dense(1)])
            model.compile(make(), "mse")
        with tracer.record() as recording:
            model.fit(np.ones((4, 2)), np.ones((4, 1)), batch_size=4, verbose=0)
        trace = recording.trace()
        assert trace.complete, trace.notes
        assert trace.updates() == 2 * replicas
        assert bool(found(trace, "never-assigned")) == idle
