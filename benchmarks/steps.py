"""Training steps that the graph benchmarks run, traced or not.

Import it before TensorFlow, which reads the environment once. The machine is made calm: one thread
works on an op, so that two cores are enough for two replicas.
"""

import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["TF_NUM_INTRAOP_THREADS"] = "1"
# With fewer threads, MirroredStrategy over logical CPUs can wait for itself for good on 2 cores.
os.environ["TF_NUM_INTEROP_THREADS"] = "16"
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import tensorflow as tf
import tf_keras

SGD: dict[str, Callable[[], Any]] = {
    "legacy": lambda: tf_keras.optimizers.legacy.SGD(0.01),
    "keras2": lambda: tf_keras.optimizers.SGD(0.01, jit_compile=False),
    "keras3": lambda: keras.optimizers.SGD(0.01),
    "v1": lambda: tf.compat.v1.train.GradientDescentOptimizer(0.01),
}
"""The optimizer that does least, so that nothing hides what is added."""

WIDTH = 8


def prepare(replicas: int = 2) -> None:
    """Make the logical CPU devices that stand for replicas; call it before TensorFlow is used."""
    tf.get_logger().setLevel("ERROR")  # each step is a function of its own, which is a lot to trace
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration() for _ in range(replicas)],
    )


@cache
def strategy_of(replicas: int) -> Any:
    """The default strategy for one replica, else a mirrored one over so many CPU devices."""
    if replicas == 1:
        return tf.distribute.get_strategy()
    return tf.distribute.MirroredStrategy(
        [f"cpu:{index}" for index in range(replicas)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )


class Case(NamedTuple):
    """A train step."""

    kind: str = "legacy"
    variables: int = 20
    xla: bool = False
    replicas: int = 1


def variables_of(case: Case) -> list[Any]:
    """The kernels and biases of a deep model, a pair for each layer."""
    made: list[Any] = []
    with strategy_of(case.replicas).scope():
        for _ in range(case.variables // 2):
            for shape in ((WIDTH, WIDTH), (WIDTH,)):
                initial = tf.random.stateless_uniform(shape, (1, 2), -0.1, 0.1)
                made.append(
                    keras.Variable(initial) if case.kind == "keras3" else tf.Variable(initial)
                )
    return made


def optimizer_of(case: Case, make: Callable[[], Any] | None = None) -> Any:
    """An optimizer of the case's kind, or what `make` makes, in the case's strategy."""
    with strategy_of(case.replicas).scope():
        return (make or SGD[case.kind])()


def raw(variable: Any) -> Any:
    """The TensorFlow variable that a Keras 3 variable holds."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def train_function(case: Case, optimizer: Any, variables: Sequence[Any]) -> Any:
    """A `tf.function` of one step of training."""
    inputs = tf.ones((4, WIDTH))

    def replica_step() -> Any:
        with tf.GradientTape() as tape:
            value = inputs
            for kernel, bias in zip(variables[::2], variables[1::2], strict=True):
                value = tf.tanh(tf.matmul(value, raw(kernel)) + raw(bias))
            loss = tf.reduce_sum(value)
        gradients = tape.gradient(loss, [raw(each) for each in variables])
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    def train_step() -> Any:
        if case.replicas == 1:
            return replica_step()
        strategy = strategy_of(case.replicas)
        return strategy.reduce("SUM", strategy.run(replica_step), None)

    return tf.function(train_step, jit_compile=case.xla)
