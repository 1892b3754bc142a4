"""What steps did to the weights, against the weights themselves.

Two sources of truth. The plan of a cell of the truth table says which variables each step updates;
the odometer proves it, and adds 1 each time, so a variable that was passed is unchanged in
just those steps that do not update it. And NumPy compares the bytes of the weights before and after
each step that a program makes one at a time, with gradients that are zero, infinite and no number.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from counts.test_truth_table import REFUSED, SKIPPED, WAYS, Rig, check, needs, replicas, strategy_of
from support.by_bytes import ByBytes
from support.libraries import keras2, keras3, needs_keras3
from support.odometers import KINDS, raw

import tracer
from tracer.check import read, verdicts

pytestmark = pytest.mark.wide(rest="sweep")

QUICK = {
    ("mirrored 2: loss scale", "legacy"),
    ("XLA while loop", "v1"),
    ("nested function", "keras2"),
    ("accumulation, function", "keras3"),
    ("mirrored 2: eager", "keras3"),
    ("fit, loss scale, steps_per_execution", "keras3"),
}
"""Cells that `pytest` alone runs; `nox -s sweep` runs the others."""


def cells() -> Iterator[Any]:
    """The cells that the framework runs and in which weights can be read."""
    for name, way in WAYS.items():
        for kind in KINDS:
            if (name, kind) not in REFUSED and not way.session:
                tier = [] if (name, kind) in QUICK else [pytest.mark.sweep]
                yield pytest.param(name, kind, id=f"{name}-{kind}", marks=[*needs(way), *tier])


def planned(rig: Rig) -> tuple[Counter[Any], Counter[Any]]:
    """In which steps each variable was passed, and in which of these it was not updated."""
    handed: Counter[Any] = Counter()
    unchanged: Counter[Any] = Counter()
    for step, done in enumerate(rig.plan, start=1):
        for label, name in rig.names().items():
            if label in rig.idle:
                continue
            updated = bool(sum(done.get(label, (0, 0))))
            if updated or done == SKIPPED or rig.absent[label]:
                for replica in range(replicas(rig)):
                    handed[name, step, replica] += 1
                    unchanged[name, step, replica] += not updated
    return handed, +unchanged


@pytest.mark.parametrize(("name", "kind"), list(cells()))
def test_what_an_odometer_changed(name: str, kind: str) -> None:
    """A step changes what the odometer shows, leaves all else as it was, and the counts stay."""
    rig = Rig(kind, WAYS[name], traced=False)
    assert tracer.wrap(rig.optimizer, effects=True) is rig.optimizer
    rig.traced = True
    rig.way.run(rig)
    check(rig)
    trace = tracer.trace_of(rig.optimizer)
    handed, unchanged = planned(rig)
    keys: Any = ("variable", "step", "replica")
    assert Counter(trace.count("compared", by=keys)) == handed
    assert Counter(trace.count("unchanged", by=keys)) == unchanged
    assert trace.count("not_finite", by=()) == {}
    assert sum(trace.count("unchanged", by=()).values()) == unchanged.total()


# Weights compared in NumPy.

GRADIENTS = [1.0, 0.0, -0.0, 1e-30, 0.5, np.inf, 1.0, 0.0, np.nan, np.nan, 0.0, 1.0]
"""Of each step; what is small is lost beside the weight, and what is once NaN stays NaN."""


def make_weights(dtypes: tuple[str, ...]) -> list[Any]:
    shapes = [(3, 2), (), (4,), (0,), (2, 2)]
    values = [
        np.full(shapes[i % 5], 1 + i).astype(tf.as_dtype(dtype).as_numpy_dtype)
        for i, dtype in enumerate(dtypes)
    ]
    return [tf.Variable(value, name=f"w{i}") for i, value in enumerate(values)]


def by_bytes(weights: list[Any]) -> ByBytes:
    """The weights by the names that a trace has for them."""
    return ByBytes(
        lambda: {
            getattr(each, "path", each.name.split(":")[0]): raw(each).numpy() for each in weights
        }
    )


class Plain(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """Subtracts the gradient, of whatever type; sparse ones from their rows."""

    def __init__(self) -> None:
        super().__init__(use_locking=True, name="Plain")

    def _resource_apply_dense(self, grad: Any, handle: Any) -> Any:
        return handle.assign_sub(tf.cast(grad, handle.dtype), read_value=False)

    def _resource_apply_sparse(self, grad: Any, handle: Any, indices: Any) -> Any:
        return handle.scatter_sub(tf.IndexedSlices(grad, indices))


DTYPES = ("float32", "float64", "float16", "float32", "bfloat16")
RUNS = ("eager", "function", "XLA", "mixed")


@pytest.mark.parametrize("run", RUNS)
def test_weights_of_many_types(run: str) -> None:
    """Bits are compared, so a NaN that stays is unchanged, and a sign of 0 is a change."""
    weights = make_weights(DTYPES)
    optimizer = tracer.wrap(Plain(), effects=True)

    def step(amount: Any) -> None:
        optimizer.apply_gradients(
            [(tf.cast(tf.fill(w.shape, amount), w.dtype), w) for w in weights]
        )

    traced = tf.function(step, jit_compile=run == "XLA")
    truth = by_bytes(weights)
    for number, amount in enumerate(GRADIENTS):
        eager = run == "eager" or (run == "mixed" and number % 3 == 1)
        truth.around(step if eager else traced, tf.constant(amount, tf.float64))
    truth.agrees_with(tracer.trace_of(optimizer))


def test_signs_of_zero_and_integers() -> None:
    """0.0 that becomes -0.0 has changed; an integer is finite."""
    weights = [tf.Variable([0.0, 0.0], name="signed"), tf.Variable([7, 8], name="whole")]

    class Negating(Plain):
        def _resource_apply_dense(self, grad: Any, handle: Any) -> Any:
            factor = -tf.cast(grad, handle.dtype)
            return handle.assign(handle.read_value() * factor, read_value=False)

        def _valid_dtypes(self) -> Any:
            return {tf.float32, tf.int32}

    optimizer = tracer.wrap(Negating(), effects=True)

    @tf.function
    def step(amount: Any) -> None:
        pairs = [(tf.cast(amount, w.dtype) * tf.ones_like(w), w) for w in weights]
        optimizer.apply_gradients(pairs)

    truth = by_bytes(weights)
    for amount in (1.0, -1.0, 1.0, -1.0):
        truth.around(step, tf.constant(amount))
    assert ("signed", 1) not in truth.unchanged and ("whole", 2) in truth.unchanged
    truth.agrees_with(tracer.trace_of(optimizer))


@needs_keras3
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"weight_decay": 0.1},
        {"use_ema": True, "ema_overwrite_frequency": 3},
        {"clipnorm": 1.0},
        {"gradient_accumulation_steps": 2},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_happens_outside_of_the_apply_methods(options: Any, jit_compile: bool) -> None:
    """Weight decay and averages change weights of which the gradient is 0: the step is compared."""
    variables = [keras3.Variable(np.ones((3,), "float32"), name=name) for name in ("a", "b")]
    optimizer = tracer.wrap(keras3.optimizers.SGD(1.0, **options), effects=True)
    optimizer.build(variables)

    @tf.function(jit_compile=jit_compile)
    def step(amount: Any) -> None:
        optimizer.apply([tf.fill([3], amount), tf.zeros([3])], variables)

    truth = by_bytes(variables)
    for amount in (1.0, 0.0, 0.5, 0.0, 0.0, 1.0, np.nan):
        truth.around(step, tf.constant(amount, tf.float32))
    truth.agrees_with(tracer.trace_of(optimizer))


def test_each_replica_has_effects_of_its_own() -> None:
    """Gradients that are not added up are 0 on the second one."""
    strategy = strategy_of("mirrored 2")
    with strategy.scope():
        weight = tf.Variable([1.0])
        optimizer = tracer.wrap(keras2.optimizers.legacy.SGD(1.0), effects=True)

    def step() -> None:
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        pairs = [(tf.cast([replica == 0], tf.float32), weight)]
        optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)

    run = tf.function(lambda: strategy.run(step))
    for _ in range(3):
        run()
    assert [each.numpy().tolist() for each in weight.values] == [[-2.0], [1.0]]
    assert tracer.trace_of(optimizer).count("unchanged", by="replica") == {(1,): 3}


def test_sparse_updates() -> None:
    """A row of a table is written in place: what it was before is still known."""
    table = tf.Variable(np.ones((5, 2), "float32"), name="table")
    optimizer = tracer.wrap(keras2.optimizers.legacy.Adagrad(0.5), effects=True)

    def step(amount: Any) -> None:
        slices = tf.IndexedSlices(tf.fill([2, 2], amount), tf.constant([1, 3]), tf.constant([5, 2]))
        optimizer.apply_gradients([(slices, table)])

    traced = tf.function(step)
    truth = by_bytes([table])
    for number, amount in enumerate(GRADIENTS):
        truth.around(traced if number % 4 else step, tf.constant(amount, tf.float32))
    assert truth.unchanged
    truth.agrees_with(tracer.trace_of(optimizer))


# Without it, with it, and from when on.


def two_weights() -> list[Any]:
    return [tf.Variable(np.ones((3,), "float32"), name=name) for name in ("a", "b")]


def test_asked_for_late() -> None:
    """From when on it is asked for it is compared, in functions that were traced before, too."""
    weights = two_weights()
    optimizer = tracer.wrap(Plain())

    @tf.function
    def step(amount: Any) -> None:
        optimizer.apply_gradients([(tf.fill([3], amount), w) for w in weights])

    for _ in range(3):
        step(tf.constant(0.0))
    with pytest.raises(tracer.UnknownName, match="no effects"):
        tracer.trace_of(optimizer).count("unchanged", by=())
    assert tracer.wrap(optimizer, effects=True) is optimizer
    for amount in (1.0, 0.0, 1.0):
        step(tf.constant(amount))
    assert tracer.wrap(optimizer) is optimizer  # goes on
    step(tf.constant(0.0))
    trace = tracer.trace_of(optimizer)
    assert trace.steps == 7 and trace.complete
    assert set(trace.count("compared", by="step")) == {(4,), (5,), (6,), (7,)}
    assert set(trace.count("unchanged", by="step")) == {(5,), (7,)}


def test_graphs_from_before_are_said_to_be_unknown() -> None:
    """Some graphs cannot be traced again, and others shall not: what is not compared is said."""
    weights = two_weights()
    optimizer = tracer.wrap(Plain())
    tracings = 0

    @tf.function
    def step(amount: Any) -> None:
        nonlocal tracings
        tracings += 1
        optimizer.apply_gradients([(tf.fill([3], amount), w) for w in weights])

    amount = tf.constant(0.0)
    concrete = step.get_concrete_function(amount)
    concrete(amount)
    tracer.wrap(optimizer, effects=True, retrace=False)
    concrete(amount)
    step(amount)
    assert tracings == 1
    trace = tracer.trace_of(optimizer)
    (note,) = trace.notes
    assert trace.complete and note.startswith("effects are unknown for 3 steps")
    assert not verdicts(trace, [read("steps=3")])[0].reason
    tracer.unwrap(optimizer, retrace=True)
    tracer.wrap(optimizer)
    with tracer.record(effects=True) as recording:
        step(amount)
    assert tracings == 2
    assert recording.trace().complete
    assert recording.trace().count("compared", by="step") == {(1,): 2}


def test_a_step_that_is_handed_something_else() -> None:
    """Who knows nothing of the gradients cannot compare, and says so."""

    class Apart(Plain):
        def apply_gradients(self, gradients: Any, weights: Any = None, name: Any = None) -> Any:
            return super().apply_gradients(zip(gradients, weights, strict=True))

    optimizer = tracer.wrap(Apart(), effects=True)
    optimizer.apply_gradients([tf.ones([3])], [tf.Variable(np.ones((3,), "float32"))])
    trace = tracer.trace_of(optimizer)
    assert trace.updates() == 1 and trace.complete
    assert trace.notes[0].startswith("effects are unknown for 1 step, ")


@pytest.mark.parametrize("shape", [[None], None])
def test_a_shape_that_may_change(shape: Any) -> None:
    """TensorFlow does not know it in a graph: the function runs, and nothing is said of it."""
    weight = tf.Variable([[1.0]] if shape is None else [1.0], shape=tf.TensorShape(shape))

    class Assigning(Plain):
        def _resource_apply_dense(self, grad: Any, handle: Any) -> Any:
            return handle.assign(grad, read_value=False)

    optimizer = tracer.wrap(Assigning(), effects=True)

    @tf.function
    def step(value: Any) -> None:
        optimizer.apply_gradients([(value, weight)])

    for value in ([1.0], [1.0, 1.0], [1.0]):
        step(tf.constant(value))
    trace = tracer.trace_of(optimizer)
    assert trace.updates() == 3 and not trace.data.effects
    assert "is not compared" in trace.notes[0]


def test_who_finds_a_step_finds_its_effects() -> None:
    """The counter of the step waits for the marks: a trace is read while the graph runs."""
    weight = tf.Variable(np.ones((3,), "float32"))
    optimizer = tracer.wrap(Plain(), effects=True)
    step = tf.function(lambda: optimizer.apply_gradients([(tf.ones([3]), weight)]) and None)
    ops = step.get_concrete_function().graph.get_operations()
    marks, _ = (op for op in ops if op.type == "ResourceScatterUpdate")
    *_, counter = (op for op in ops if op.type == "RngReadAndSkip")
    waiting = [counter, *(each.op for each in counter.inputs)]  # for what an input waits, it does
    assert any(marks in op.control_inputs for op in waiting)


def test_a_session_has_no_effects() -> None:
    with tf.Graph().as_default():
        weight = tf.compat.v1.get_variable("w", [3], initializer=tf.compat.v1.ones_initializer())
        optimizer = tracer.wrap(Plain(), effects=True)
        train = optimizer.apply_gradients([(tf.ones([3]), weight)])
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(train)
    trace = tracer.trace_of(optimizer)
    assert trace.updates() == 1
    assert [note for note in trace.notes if "effects" in note] == [
        "effects are unknown in the graph of a Session: its variables are not compared"
    ]


def test_a_step_inside_of_a_step_is_compared_once() -> None:
    """An override that calls a function for each variable, which calls the method again."""
    weights = two_weights()

    class Outer(Plain):
        def apply_gradients(self, pairs: Any, *args: Any, **kwargs: Any) -> Any:
            if len(pairs) == 1:
                return super().apply_gradients(pairs)
            for index, (gradient, _) in enumerate(pairs):
                alone(gradient, index)
            return None

    @tf.function
    def alone(gradient: Any, index: int) -> None:
        optimizer.apply_gradients([(gradient, weights[index])])

    optimizer = tracer.wrap(Outer(), effects=True)
    truth = by_bytes(weights)

    def step(amount: Any) -> None:
        optimizer.apply_gradients([(tf.fill([3], amount), w) for w in weights])

    for amount in (1.0, 0.0, 1.0, 0.0, np.inf):
        truth.around(step, tf.constant(amount, tf.float32))
    truth.agrees_with(tracer.trace_of(optimizer))


def test_more_runs_than_the_ring_holds() -> None:
    """What some steps did is lost then, which a note says; the counts of updates are exact."""
    weights = two_weights()
    optimizer = tracer.wrap(Plain(), effects=True)
    steps = 17_000  # both rings lose rows: that of the updates, and that of two numbers for effects
    random = np.random.default_rng(1)
    amounts = random.integers(0, 2, steps).astype("float32")

    @tf.function
    def train(amounts: Any) -> None:
        for amount in amounts:
            pairs = zip([tf.fill([3], amount), tf.fill([3], 1 - amount)], weights, strict=True)
            optimizer.apply_gradients(pairs)

    train(tf.constant(amounts))
    trace = tracer.trace_of(optimizer)
    per_step = list(trace.per_step("updates"))
    assert per_step == [(1, steps, 2)]
    (note,) = trace.notes
    assert trace.complete and note.startswith(f"effects are unknown for {steps - 8_191:,} steps, ")
    for weight, still in zip(weights, (amounts == 0, amounts == 1), strict=True):
        placed = {step for (step,) in trace.count("unchanged", by="step", variable=weight)}
        assert 0 < len(placed) < still.sum()
        assert placed <= {index + 1 for index in np.flatnonzero(still)}
