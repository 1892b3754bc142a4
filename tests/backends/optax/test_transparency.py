"""A traced transformation is as the one without: see `test_makers.py` for the same bits, too."""

import copy
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tracer
from tracer.core.registry import bindings

PARAMS = {
    f"{number}": {"w": jnp.full((9, 9), 0.5 + number), "b": jnp.ones(9)} for number in range(3)
}


def test_what_is_not_used_is_not_kept() -> None:
    """SGD looks at no parameters: XLA is not given them, and no program holds their arrays."""
    for tx in (optax.sgd(0.1), tracer.wrap(optax.sgd(0.1))):
        state, given = tx.init(PARAMS), jax.tree.map(jnp.copy, PARAMS)
        jax.jit(tx.update, donate_argnums=2)(PARAMS, state, given)
        assert not any(each.is_deleted() for each in jax.tree.leaves(given))
        closed = jax.make_jaxpr(lambda g: tx.update(g, state, PARAMS))(PARAMS)  # noqa: B023
        assert not closed.consts


def test_arrays_that_are_none_of_jax() -> None:
    """Names and objects of NumPy in a state go nowhere, also where JAX knows of the members."""
    tx = tracer.wrap(optax.GradientTransformation(lambda p: {"of": np.array(["x"])}, update))
    state = tx.init(PARAMS)
    for around in (jax.jit, jax.vmap):
        around(lambda g: tx.update(g, state)[0])(PARAMS)
    trace = tracer.trace_of(tx)
    assert trace.complete and trace.steps == 2
    assert trace.updates() == 6 + 9 * 6


def test_it_is_transposed_as_before() -> None:
    """What is transposed is another program, and no step."""
    one = jnp.ones(3)
    for tx in (optax.scale(2.0), tracer.wrap(optax.scale(2.0))):
        state = tx.init(one)
        (twice,) = jax.linear_transpose(lambda g: tx.update(g, state)[0], one)(one)  # noqa: B023
        assert np.asarray(twice).tolist() == [2.0] * 3


def init(params: Any) -> Any:
    return optax.EmptyState()


def update(updates: Any, state: Any, params: Any = None) -> Any:
    return updates, state


@pytest.mark.parametrize(
    "kind", [optax.GradientTransformation, optax.GradientTransformationExtraArgs]
)
def test_it_is_one_of_its_kind(kind: Any) -> None:
    given = kind(init, update)
    tx = tracer.wrap(given)
    assert type(tx) is kind
    first, second = tx
    assert first is init
    assert second is tx.update
    assert second.__name__ == "update"
    assert tracer.wrap(tx) is tx
    assert copy.deepcopy(tx) == tx
    assert pickle.loads(pickle.dumps(tx)) == given
    assert tracer.unwrap(tx) is given


def test_unwrapped_it_counts_no_more_and_wrapped_again_it_goes_on() -> None:
    given = optax.sgd(1.0)
    tx = tracer.wrap(given)
    state = tx.init(PARAMS)
    compiled = jax.jit(tx.update)
    compiled(PARAMS, state)
    tracer.unwrap(tx, retrace=True)
    compiled(PARAMS, state)
    given.update(PARAMS, state)
    assert tracer.trace_of(tx).steps == 1
    tracer.wrap(tx)
    tx.update(PARAMS, state)
    assert tracer.trace_of(tx).steps == 2
    with pytest.raises(ValueError, match="not wrapped"):
        tracer.unwrap(given)


def test_the_same_error() -> None:
    errors = []
    for tx in (optax.sgd(1.0), tracer.wrap(optax.sgd(1.0))):
        with pytest.raises(TypeError) as caught:
            tx.update(PARAMS)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


def test_nothing_is_left_of_one_that_is_gone() -> None:
    import gc

    tx = tracer.wrap(optax.adam(1.0))
    key = id(tx.update)
    tx.update(PARAMS, tx.init(PARAMS))
    assert key in bindings
    del tx
    gc.collect()
    assert key not in bindings
