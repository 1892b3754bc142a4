"""Every strategy that runs in one process, over 200 steps, against an odometer on each replica."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from support import odometers
from support.libraries import with_loss_scale

import tracer

pytestmark = pytest.mark.wide(rest="sweep")

v1 = tf.compat.v1

STEPS = 200
DEVICES = ["/cpu:0", "/cpu:1"]


def _mirrored(operations: Any) -> Callable[[], Any]:
    return lambda: tf.distribute.MirroredStrategy(DEVICES, cross_device_ops=operations())


STRATEGIES: dict[str, Callable[[], Any]] = {
    "mirrored, reduction to one device": _mirrored(tf.distribute.ReductionToOneDevice),
    "mirrored, hierarchical copy": _mirrored(tf.distribute.HierarchicalCopyAllReduce),
    "mirrored, default": lambda: tf.distribute.MirroredStrategy(DEVICES),
    "one device": lambda: tf.distribute.OneDeviceStrategy("/cpu:1"),
    "central storage": lambda: tf.distribute.experimental.CentralStorageStrategy(DEVICES),
}


class Rig:
    """An odometer under a strategy, with the hand-made variables."""

    def __init__(self, strategy: str, kind: str) -> None:
        self.strategy = STRATEGIES[strategy]()
        with self.strategy.scope():
            self.optimizer = tracer.wrap(odometers.ODOMETERS[kind]())
            self.variables = odometers.make_variables(kind)
            if kind == "keras3":
                self.optimizer.build(list(self.variables.values()))

    def check(self, steps: int) -> None:
        """Each replica's counts are what its copies of the variables show, in all and by step."""
        trace = tracer.trace_of(self.optimizer)
        assert trace.complete, trace.notes
        assert trace.steps == steps
        total = 0
        for name, variable in self.variables.items():
            for replica, (dense, sparse) in enumerate(odometers.read(variable)):
                assert dense + sparse == steps
                for kind, count in (("dense", dense), ("sparse", sparse)):
                    found = trace.updates(kind, variable=variable, replica=replica)  # type: ignore[arg-type]
                    assert (name, replica, kind, found) == (name, replica, kind, count)
                total += dense + sparse
        assert trace.updates() == total
        assert list(trace.per_step("updates")) == [(1, steps, total // steps)]
        assert len(trace.variables) == len(self.variables)


def cells() -> list[Any]:
    return [
        pytest.param(strategy, kind, id=f"{strategy}-{kind}")
        for strategy in STRATEGIES
        for kind in odometers.KINDS
    ]


@pytest.mark.parametrize(("strategy", "kind"), cells())
def test_a_custom_loop(strategy: str, kind: str) -> None:
    rig = Rig(strategy, kind)

    def replica_step(scale: Any) -> Any:
        rig.optimizer.apply_gradients(odometers.gradients(rig.variables))
        return tf.identity(scale)

    @tf.function
    def step(scale: Any) -> Any:
        values = rig.strategy.run(replica_step, args=(scale,))
        return rig.strategy.reduce(tf.distribute.ReduceOp.SUM, values, axis=None)

    for _ in range(STEPS):
        total = step(tf.constant(1.0))
    assert total.numpy() == rig.strategy.num_replicas_in_sync
    rig.check(STEPS)


@pytest.mark.parametrize("kind", ["legacy", "keras2", "keras3"])
def test_a_distributed_dataset(kind: str) -> None:
    rig = Rig("mirrored, reduction to one device", kind)
    data = tf.data.Dataset.from_tensor_slices(tf.ones(STEPS * 2)).batch(2)
    batches = rig.strategy.experimental_distribute_dataset(data)

    @tf.function
    def epoch(iterator: Any) -> None:
        for _ in tf.range(STEPS // 4):
            rig.strategy.run(
                lambda batch: rig.optimizer.apply_gradients(
                    odometers.gradients(rig.variables, tf.reduce_mean(batch))
                ),
                args=(next(iterator),),
            )

    iterator = iter(batches)
    for _ in range(4):
        epoch(iterator)
    rig.check(STEPS)


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        ("legacy", {"experimental_aggregate_gradients": False}),
        ("keras2", {"skip_gradients_aggregation": True}),
    ],
)
def test_aggregation_switched_off(kind: str, option: dict[str, bool]) -> None:
    rig = Rig("mirrored, reduction to one device", kind)

    def replica_step() -> None:
        rig.optimizer.apply_gradients(odometers.gradients(rig.variables), **option)

    step = tf.function(lambda: rig.strategy.run(replica_step))
    for _ in range(STEPS):
        step()
    rig.check(STEPS)


@pytest.mark.parametrize(
    ("name", "kind", "scaled"),
    [
        pytest.param(name, kind, scaled, id=f"{name}-{kind}{'-loss scale' * scaled}")
        for name in STRATEGIES
        for kind in ("legacy", "v1")
        for scaled in (False, True)
        if (name, kind, scaled) != ("central storage", "legacy", True)  # tf_keras refuses it
    ],
)
def test_a_graph_of_a_session(name: str, kind: str, scaled: bool) -> None:
    """A loss scale applies its inner optimizer's gradients from the strategy's other threads."""
    optimizer = odometers.ODOMETERS[kind]()
    with tf.Graph().as_default():
        strategy = STRATEGIES[name]()
        with strategy.scope():
            kernel = v1.get_variable("kernel", [2], initializer=tf.zeros_initializer())
            if scaled:
                optimizer = with_loss_scale(kind, optimizer)
            tracer.wrap(optimizer)
            train = strategy.run(lambda: optimizer.apply_gradients([(tf.ones([2]), kernel)]))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for _ in range(3):
                session.run(strategy.experimental_local_results(train))
            values = session.run(list(odometers.components(kernel)))
    shown = [odometers.reading(value) for value in values]
    trace = tracer.trace_of(optimizer)
    assert trace.complete, trace.notes
    assert trace.steps == 3
    assert shown == [odometers.Reading(3)] * len(shown)
    for replica in range(len(shown)):
        assert trace.updates("dense", replica=replica) == 3
    assert trace.updates() == 3 * len(shown)


@pytest.mark.parametrize("in_graph", [False, True])
def test_variables_of_dtensor(in_graph: bool) -> None:
    """Counted in eager mode; DTensor has no layout for the ops of a counter in a graph."""
    dtensor = tf.experimental.dtensor
    mesh = dtensor.create_mesh([("rows", 3)], devices=["CPU:0", "CPU:1", "CPU:2"])
    split = dtensor.Layout(["rows", dtensor.UNSHARDED], mesh)
    zeros = dtensor.call_with_layout(tf.zeros, split, (6, 2))
    weight = dtensor.DVariable(zeros, name="weight")
    last = tf.constant([[0.0, 0.0]] * 5 + [[0.0, -1.0]])  # for the third shard alone
    gradient = dtensor.relayout(
        dtensor.copy_to_mesh(last, dtensor.Layout.replicated(mesh, 2)), split
    )
    optimizer = tracer.wrap(v1.train.GradientDescentOptimizer(1.0), effects=True)

    def step() -> None:
        optimizer.apply_gradients([(gradient, weight)])

    run = tf.function(step) if in_graph else step
    for _ in range(5):
        run()
    third = dtensor.unpack(weight.read_value())[2].numpy().tolist()
    assert third == [[0, 0], [0, 5]]
    trace = tracer.trace_of(optimizer)
    (row,) = trace.data.variables
    assert (row.name, row.shape) == ("weight", (6, 2))
    if in_graph:
        assert not trace.complete and "variables of DTensor" in " ".join(trace.notes)
        assert not trace.updates() and not trace.findings()
    else:
        assert trace.complete and trace.steps == trace.updates(variable=weight) == 5
        assert trace.count("unchanged", by=()) == {} and not trace.findings()
