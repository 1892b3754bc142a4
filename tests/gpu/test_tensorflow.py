"""Steps of Keras on TensorFlow on a GPU; the weights count their updates."""

import os
from typing import Any

import pytest

import tracer

pytestmark = pytest.mark.gpu
if "TRACER_TEST_DEVICE" not in os.environ:
    pytest.skip("runs on a GPU: nox -s gpu", allow_module_level=True)
if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
    pytest.skip("Keras has another backend", allow_module_level=True)
tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")


@pytest.fixture
def where(device: str) -> str:
    """The device by TensorFlow's name."""
    if device == "gpu" and not tf.config.list_physical_devices("GPU"):
        pytest.skip("no GPU that TensorFlow can use")
    return f"/{device}:0"


class Odometer(keras.optimizers.Optimizer):  # type: ignore[misc, name-defined]
    """Adds exactly 1 to a weight each time that it is updated."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        variable.assign_add(tf.ones_like(variable))


@pytest.mark.parametrize("effects", [False, True])
@pytest.mark.parametrize("kind", ["eager", "graph", "loop", "XLA"])
def test_steps(where: str, kind: str, effects: bool) -> None:
    with tf.device(where):
        variables = [keras.Variable(tf.zeros(2)) for _ in range(3)]
        optimizer = Odometer(1.0)
        optimizer.build(variables)
        tracer.wrap(optimizer, effects=effects)

        def step() -> None:
            optimizer.apply_gradients([(tf.ones(2), each) for each in variables])

        def loop() -> None:
            for _ in tf.range(5):
                step()

        run = {
            "eager": step,
            "graph": tf.function(step),
            "loop": tf.function(loop),
            "XLA": tf.function(step, jit_compile=True),
        }[kind]
        for _ in range(4):
            run()
    steps = 20 if kind == "loop" else 4
    assert all(where.upper().removesuffix(":0")[1:] in each.value.device for each in variables)
    assert [float(each.numpy()[0]) for each in variables] == [steps] * 3
    trace = tracer.trace_of(optimizer)
    assert (trace.steps, trace.updates()) == (steps, 3 * steps)
    if effects:
        assert trace.count("compared", by=()) == {(): 3 * steps}
        assert not sum(trace.count("unchanged", by=()).values())
