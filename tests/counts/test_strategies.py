"""Strategies in the graph of a session, and variables of DTensor."""

import pytest
import tensorflow as tf
from counts.test_truth_table import strategy_of
from support import odometers
from support.against_odometers import assert_totals
from support.libraries import with_loss_scale

import tracer

pytestmark = pytest.mark.wide(rest="sweep")

v1 = tf.compat.v1

STRATEGIES = (
    "mirrored 2",
    "hierarchical copy",
    "default reduction",
    "one device",
    "central storage",
)


@pytest.mark.parametrize("kind", odometers.KINDS)
def test_variables_in_one_place_for_two_replicas(kind: str) -> None:
    strategy = strategy_of("central storage")
    with strategy.scope():
        optimizer, variables = odometers.ODOMETERS[kind](), odometers.make_variables(kind)
    tracer.wrap(optimizer)

    def replica() -> None:
        optimizer.apply_gradients(odometers.gradients(variables))

    step = tf.function(lambda: strategy.run(replica))
    for _ in range(4):
        step()
    assert_totals(tracer.trace_of(optimizer), variables, 4)


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
        strategy = strategy_of.__wrapped__(name)
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


@pytest.mark.parametrize("graph", [False, True])
def test_variables_of_dtensor(graph: bool) -> None:
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

    run = tf.function(step) if graph else step
    for _ in range(5):
        run()
    third = dtensor.unpack(weight.read_value())[2].numpy().tolist()
    assert third == [[0, 0], [0, 5]]
    trace = tracer.trace_of(optimizer)
    (row,) = trace.data.variables
    assert (row.name, row.shape) == ("weight", (6, 2))
    if graph:
        assert not trace.complete and "variables of DTensor" in " ".join(trace.notes)
        assert not trace.updates() and not trace.findings()
    else:
        assert trace.complete and trace.steps == trace.updates(variable=weight) == 5
        assert trace.count("unchanged", by=()) == {} and not trace.findings()
