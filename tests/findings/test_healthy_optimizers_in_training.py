"""Healthy optimizers in many styles: no warning when they are wrapped, none when they trained.

They write as published rules do, in ways that a look at what a step assigns could miss. What looks
like a fault in the code of a class alone is in `evidence/test_inspection.py`.
"""
# mypy: ignore-errors
# Bodies as people write them: without types.

import warnings
from typing import Any

import pytest
import tensorflow as tf
from support.findings_of import bad
from support.libraries import Keras3Optimizer, keras2, keras3

import tracer

L = keras2.optimizers.legacy.Optimizer
K2 = keras2.optimizers.Optimizer
V1 = tf.compat.v1.train.Optimizer
ALL = []


def add(cls):
    if cls.__mro__[1] is not object:  # where there is no Keras 3
        ALL.append(cls)
    return cls


class OwnLegacy(L):
    """Where those of one's own begin in the older interface."""

    def __init__(self, name="own"):
        super().__init__(name)

    def get_config(self):
        return {}


class WithRate(K2):
    """Where those for Keras 2.11 and later begin."""

    def __init__(self, learning_rate=0.1, name="own", **kwargs):
        super().__init__(name=name, **kwargs)
        self._learning_rate = self._build_learning_rate(learning_rate)


@add
class SlotsAsThePublished(V1):
    def __init__(self, learning_rate=0.1):
        super().__init__(False, "slots")
        self._rate = learning_rate

    def _prepare(self):
        self._rate_t = tf.convert_to_tensor(self._rate)

    def _create_slots(self, var_list):
        for each in var_list:
            self._zeros_slot(each, "m", self._name)

    def _apply_dense(self, grad, var):
        return self._resource_apply_dense(grad, var)

    def _resource_apply_dense(self, grad, var):
        m = self.get_slot(var, "m")
        moved = m.assign(tf.maximum(0.9 * m, tf.abs(grad)))
        update = var.assign_sub(self._rate_t * grad / (moved + 1e-8))
        return tf.group(update, moved)

    def _resource_apply_sparse(self, grad, var, indices):
        return self._resource_apply_dense(
            tf.convert_to_tensor(tf.IndexedSlices(grad, indices, tf.shape(var))), var
        )

    def _apply_sparse(self, grad, var):
        return self._resource_apply_sparse(grad.values, var, grad.indices)


@add
class CentralizedByGetGradients(keras2.optimizers.legacy.Adam):
    def get_gradients(self, loss, params):
        return [g - tf.reduce_mean(g) for g in super().get_gradients(loss, params)]

    def _compute_gradients(self, loss, var_list, grad_loss=None, tape=None):
        pairs = super()._compute_gradients(loss, var_list, grad_loss, tape)
        return [(g - tf.reduce_mean(g), v) for g, v in pairs]


@add
class Raw(OwnLegacy):  # by the op itself, with keyword arguments
    def __init__(self):
        super().__init__("raw")

    def _resource_apply_dense(self, grad, var, apply_state=None):
        return tf.raw_ops.ResourceApplyGradientDescent(
            var=var.handle, alpha=tf.constant(0.1), delta=grad, use_locking=True
        )

    def _resource_apply_sparse(self, grad, var, indices, apply_state=None):
        return tf.raw_ops.ResourceScatterSub(
            resource=var.handle, indices=indices, updates=0.1 * grad
        )


@add
class RawScatter(Keras3Optimizer):  # by the variable beneath
    def update_step(self, gradient, variable, learning_rate):
        beneath = variable.value if hasattr(variable, "path") else variable
        rows = tf.range(tf.shape(beneath)[0])
        beneath.scatter_sub(tf.IndexedSlices(learning_rate * gradient, rows))


@add
class InAHelperFunction(WithRate):
    def update_step(self, gradient, variable):
        return _descend(variable, gradient, self.learning_rate)


def _descend(variable, gradient, rate):
    variable.assign(variable - rate * gradient)


@add
class ByLoops(WithRate):  # row by row
    def update_step(self, gradient, variable):
        for row in range(variable.shape[0]):
            variable[row].assign(variable[row] - self.learning_rate * gradient[row])


CASES = [
    pytest.param(cls, id=cls.__name__, marks=[pytest.mark.long] if number % 8 else [])
    for number, cls in enumerate(ALL)
]


@pytest.mark.parametrize("cls", CASES)
def test_nothing_is_said(cls: Any) -> None:
    of_keras3 = keras3 is not None and issubclass(cls, Keras3Optimizer)
    optimizer = cls(learning_rate=0.1) if of_keras3 else cls()
    with warnings.catch_warnings():
        warnings.simplefilter("error", tracer.OptimizerWarning)
        tracer.wrap(optimizer)
    start = tf.ones((2, 2))
    make = keras3.Variable if of_keras3 else tf.Variable
    variables = [make(start, name=name) for name in ("a", "b", "c")]
    if hasattr(optimizer, "build"):
        optimizer.build(variables)

    @tf.function
    def step() -> None:
        optimizer.apply_gradients([(tf.ones((2, 2)), each) for each in variables])

    for _ in range(4):
        step()
    trace = tracer.trace_of(optimizer)
    assert trace.updates() == 12
    assert all((each.numpy() != start.numpy()).any() for each in variables)
    assert not bad(trace)
