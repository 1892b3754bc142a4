"""What a trace says of each graph tracing, against what the program did to have it made."""

import gc

import tensorflow as tf
from support.odometers import ODOMETERS
from support.saved import assert_saved

import tracer
from tracer.model.records import Graph
from tracer.model.trace import summaries_of
from tracer.reporters.columns import table


def figures(graph: Graph) -> tuple[str, int, int, int, int]:
    return (
        graph.signature,
        graph.tracings,
        graph.idle,
        graph.steps,
        graph.after,
    )


def test_each_signature_has_its_steps_and_when_it_came() -> None:
    weights = tf.Variable([0.0, 0.0])
    optimizer = tracer.wrap(ODOMETERS["legacy"]())
    optimizer.apply_gradients([(tf.ones(2), weights)])  # so that it makes no variables any more

    @tf.function
    def train(x, twice=False):  # type: ignore[no-untyped-def]
        optimizer.apply_gradients([(x * weights, weights)])
        if twice:
            optimizer.apply_gradients([(x * weights, weights)])

    for _ in range(3):
        train(tf.ones(2))
    train(tf.ones(1))
    train(tf.ones(2), twice=True)
    train.get_concrete_function(tf.ones([]))
    trace = tracer.trace_of(optimizer)
    assert [figures(graph) for graph in trace.graphs] == [
        ("x: float32[2], twice: False", 1, 0, 3, 1),
        ("x: float32[1], twice: False", 1, 0, 1, 4),
        ("x: float32[2], twice: True", 1, 0, 2, 5),
        ("x: float32[], twice: False", 1, 1, 0, 7),
    ]
    assert {graph.function for graph in trace.graphs} == {"train"}
    assert weights.numpy().tolist() == [7.0, 7.0]  # 1 eager step and 3 + 1 + 2 in graphs


def test_a_graph_inside_another_that_never_ran_is_counted() -> None:
    """As Keras 3 trains: the inner function makes variables, so it is traced twice."""
    weights = tf.Variable([0.0])
    optimizer = tracer.wrap(ODOMETERS["legacy"]())

    @tf.function
    def inner(x):  # type: ignore[no-untyped-def]
        optimizer.apply_gradients([(x * weights, weights)])

    outer = tf.function(lambda x: inner(x))
    for _ in range(3):
        outer(tf.ones(1))
    (graph,) = tracer.trace_of(optimizer).graphs
    (row,) = [
        values
        for values, *_ in table(summaries_of(tracer.trace_of(optimizer))[0], "method").rows
        if values["method"] == "apply_gradients"
    ]
    assert (graph.tracings, graph.idle, graph.steps) == (2, 1, 3)
    assert (row["graphs"], row["graphs_never_ran"], row["executions"]) == (2, 1, 3)
    assert tracer.trace_of(optimizer).answer().endswith("while tracing 2 graphs.")
    assert not tracer.trace_of(optimizer).findings()


def test_a_part_that_first_runs_in_a_later_block_is_no_tracing_of_it() -> None:
    weights = tf.Variable([0.0])
    optimizer = tracer.wrap(ODOMETERS["legacy"]())
    optimizer.apply_gradients([(tf.ones(1), weights)])  # so that it makes no variables any more

    @tf.function
    def one():  # type: ignore[no-untyped-def]
        optimizer.apply_gradients([(tf.ones(1), weights)])
        return 0

    @tf.function
    def two():  # type: ignore[no-untyped-def]
        optimizer.apply_gradients([(tf.ones(1), weights)])
        return 0

    train = tf.function(lambda flag: tf.cond(flag, one, two))
    seen = []
    for flag in (True, True, False, True):
        with tracer.record() as recording:
            train(tf.constant(flag))
        assert_saved(recording.trace())
        (graph,) = recording.trace().graphs
        seen.append((graph.tracings, graph.idle, graph.steps))
    assert seen == [(2, 1, 1), (0, 0, 1), (0, 0, 1), (0, 0, 1)]
    assert weights.numpy().tolist() == [1 + 4.0]


def test_graphs_that_are_gone_are_added_up() -> None:
    weights = tf.Variable([0.0])
    optimizer = tracer.wrap(ODOMETERS["v1"]())

    def train(x):  # type: ignore[no-untyped-def]
        optimizer.apply_gradients([(x * weights, weights)])

    for _ in range(5):
        function = tf.function(train)
        function(tf.ones(1))
        function(tf.ones(1))
        del function
        gc.collect()
    idle = tf.function(train)
    idle.get_concrete_function(tf.ones(1))
    (graph,) = tracer.trace_of(optimizer).graphs
    assert figures(graph) == ("x: float32[1]", 6, 1, 10, 0)
    assert weights.numpy().tolist() == [10.0]


def test_a_recording_has_the_graphs_of_its_block_only() -> None:
    weights = tf.Variable([0.0])
    optimizer = tracer.wrap(ODOMETERS["legacy"]())
    optimizer.apply_gradients([(tf.ones(1), weights)])  # so that it makes no variables any more

    @tf.function
    def train(x):  # type: ignore[no-untyped-def]
        optimizer.apply_gradients([(x * weights, weights)])

    train(tf.ones(1))
    train(tf.ones(2))
    with tracer.record() as recording:
        train(tf.ones(1))
        train(tf.ones(3)[:1] + tf.ones([1, 1]))
    assert [figures(graph) for graph in recording.trace().graphs] == [
        ("x: float32[1]", 0, 0, 1, 0),
        ("x: float32[1, 1]", 1, 0, 1, 1),
    ]
