"""Programs and errors of Keras on JAX are as without the tracer; see `truth/test_keras.py`, too."""

import jax
import pytest
from backends.jax.keras_on_jax import Loop, Odometer, X, Y

import tracer


def test_as_many_programs_and_no_effect() -> None:
    """An effect would turn off the fast path of `jax.jit`."""
    counts = []
    for wrapped in (False, True):
        loop = Loop(tracer.wrap(Odometer()) if wrapped else Odometer())
        step = jax.jit(loop.step)
        for x in (X[:8], X[:4], X[8:16]):
            loop.state = step(loop.state, x, Y[: len(x)])
        assert not jax.make_jaxpr(loop.step)(loop.state, X[:8], Y[:8]).effects
        counts.append(step._cache_size())
    assert counts == [2, 2]


def test_the_same_error() -> None:
    errors = []
    for wrapped in (False, True):
        loop = Loop(tracer.wrap(Odometer()) if wrapped else Odometer())
        with pytest.raises(ValueError) as caught:
            loop.optimizer.stateless_apply([], [], [])
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
