"""Steps of optax on a GPU; the weights count their updates."""

import os
from typing import Any

import pytest

import tracer

pytestmark = pytest.mark.gpu
if "TRACER_TEST_DEVICE" not in os.environ:
    pytest.skip("runs on a GPU: nox -s gpu", allow_module_level=True)
jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")


@pytest.fixture
def where(device: str) -> Any:
    """The first such device of JAX."""
    try:
        return jax.devices(device)[0]
    except RuntimeError:
        pytest.skip("no GPU that JAX can use")


@pytest.mark.parametrize("kind", ["eager", "jit", "scan"])
def test_steps(where: Any, kind: str) -> None:
    with jax.default_device(where), tracer.record() as recording:
        optimizer = optax.sgd(-1.0)
        weights = {name: jax.numpy.zeros(2) for name in "abc"}
        state = optimizer.init(weights)

        def step(weights: Any, state: Any) -> Any:
            gradients = jax.tree.map(jax.numpy.ones_like, weights)
            updates, state = optimizer.update(gradients, state, weights)
            return optax.apply_updates(weights, updates), state

        def scan(weights: Any, state: Any) -> Any:
            return jax.lax.scan(lambda held, _: (step(*held), None), (weights, state), length=5)[0]

        run = {"eager": step, "jit": jax.jit(step), "scan": jax.jit(scan)}[kind]
        for _ in range(4):
            weights, state = run(weights, state)
        jax.block_until_ready(weights)
    steps = 20 if kind == "scan" else 4
    assert [float(each[0]) for each in weights.values()] == [steps] * 3
    trace = recording.trace()
    assert (trace.steps, trace.updates()) == (steps, 3 * steps)
