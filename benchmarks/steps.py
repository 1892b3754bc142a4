"""Training steps whose length can be set: what the graph benchmarks run, traced or not.

Import it before TensorFlow, which reads the environment once. The machine is made calm: one thread
works on an op, so that two cores are enough for two replicas.
"""

import os
import time
from collections.abc import Callable, Sequence
from functools import cache
from statistics import median
from typing import Any, NamedTuple

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["TF_NUM_INTRAOP_THREADS"] = "1"
# With fewer threads, MirroredStrategy over logical CPUs can wait for itself for good on 2 cores.
os.environ["TF_NUM_INTEROP_THREADS"] = "16"
os.environ["KERAS_BACKEND"] = "tensorflow"

import bench
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
_WORK = 160  # one turn of the dial is a product of matrices of this size, about 0.1 ms


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
    """A train step, but for its length."""

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
    """A `tf.function` of how many turns of work there are beside one step of training."""
    inputs = tf.ones((4, WIDTH))
    matrix = tf.random.stateless_uniform((_WORK, _WORK), (3, 4), 0.0, 2.0 / _WORK)

    def replica_step(turns: Any) -> Any:
        _, result = tf.while_loop(
            lambda turn, _: turn < turns,
            lambda turn, result: (turn + 1, tf.matmul(result, matrix)),
            (0, matrix),
        )
        with tf.GradientTape() as tape:
            value = inputs + 1e-6 * result[0, 0]
            for kernel, bias in zip(variables[::2], variables[1::2], strict=True):
                value = tf.tanh(tf.matmul(value, raw(kernel)) + raw(bias))
            loss = tf.reduce_sum(value)
        gradients = tape.gradient(loss, [raw(each) for each in variables])
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    def train_step(turns: Any) -> Any:
        if case.replicas == 1:
            return replica_step(turns)
        strategy = strategy_of(case.replicas)
        return strategy.reduce("SUM", strategy.run(replica_step, (turns,)), None)

    return tf.function(train_step, jit_compile=case.xla)


def step_of(case: Case, wrap: Callable[[Any], Any] = lambda optimizer: optimizer) -> Any:
    """A train function of the case, with variables and an optimizer of its own; graph traced."""
    variables = variables_of(case)
    step = train_function(case, wrap(optimizer_of(case)), variables)
    step(tf.constant(0))
    return step


def turns_for(step: Any, milliseconds: float) -> int:
    """How many turns of work make the step that long; 0 if it takes longer without any."""
    if not milliseconds:
        return 0

    def taken(turns: int) -> float:
        work = tf.constant(turns)
        sample = bench.timed(lambda: step(work), 3)
        return 1000 * median(sample() for _ in range(9))

    taken(10)
    start, more = taken(0), 50
    return max(0, round((milliseconds - start) * more / (taken(more) - start)))


def sample_of(step: Any, turns: int, seconds: float = 0.04) -> bench.Sample:
    """A sample of some steps, at least one, that take about so many seconds."""
    work = tf.constant(turns)
    begin = time.perf_counter()
    for _ in range(3):
        step(work)
    each = (time.perf_counter() - begin) / 3
    return bench.timed(lambda: step(work), max(1, min(200, round(seconds / each))))
