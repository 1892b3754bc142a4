"""Optimizers that were made before a block, and what they did before and do in others."""

import gc
from contextlib import ExitStack
from typing import Any

import pytest
import tensorflow as tf
from support.libraries import is_keras3, keras2, keras3, needs_keras3, optimizer_of
from support.odometers import ODOMETERS, Reading, read

import tracer
from tracer.core import registry
from tracer.hooks import wrapping

legacy = keras2.optimizers.legacy


def _step(optimizer: Any, *weights: Any) -> None:
    optimizer.apply_gradients([(tf.ones_like(weight), weight) for weight in weights])


def _begin() -> None:
    """The first block of a process walks over all objects."""
    with tracer.record():
        pass


def test_a_function_that_counts_and_whose_optimizer_is_gone() -> None:
    weight = tf.Variable([0.0])

    def function_of(holder: list[Any]) -> Any:
        def step() -> None:
            _step(holder[0], weight)

        return tf.function(step)

    holder = [ODOMETERS["legacy"]()]
    run = function_of(holder)
    with tracer.record():
        run()
    with tracer.record() as recording:
        holder.clear()
        gc.collect()
        run()
        run()
    assert read(weight)[0] == Reading(3)
    assert (recording.trace().updates(), recording.trace().complete) == (2, True)


def test_a_dataset_that_counts_asks_nobody() -> None:
    """It runs the function that it was made with, and no Python."""
    optimizer, weight = legacy.SGD(1.0), tf.Variable([0.0])

    def step(element: Any) -> Any:
        _step(optimizer, weight)
        return element

    tf.function(lambda: _step(optimizer, weight))()
    with tracer.record() as recording:
        data = tf.data.Dataset.range(3).map(step)
        assert len(list(data)) == 3
    assert recording.trace().updates() == 3
    with tracer.record() as recording:
        assert len(list(data)) == 3
    assert weight.numpy() == [-7.0]
    assert recording.trace().updates() == 3


def test_a_block_that_begins_in_the_call_of_a_function_that_counts() -> None:
    """Nobody is asked for what is left of it."""
    optimizer, weight = ODOMETERS["legacy"](), tf.Variable([0.0])
    blocks = ExitStack()
    recordings: list[Any] = []

    def begin() -> None:
        recordings.append(blocks.enter_context(tracer.record()))

    @tf.function
    def steps(at: Any) -> None:
        for each in tf.range(10):
            _step(optimizer, weight)
            if each == at:
                tf.py_function(begin, [], [])

    with tracer.record():
        steps(tf.constant(-1))
    with blocks:
        steps(tf.constant(3))
    assert read(weight)[0] == Reading(20)
    (recording,) = recordings
    assert 6 <= recording.trace().updates() <= 7  # the fourth may be updated before it, or after
    assert recording.trace().complete


@pytest.mark.parametrize("first", ["outer", "inner"])
@pytest.mark.parametrize("kind", ["legacy", "keras2", pytest.param("keras3", marks=needs_keras3)])
def test_whichever_of_two_is_called_first_the_outer_one_is_the_root(kind: str, first: str) -> None:
    home = keras3.optimizers if kind == "keras3" else keras2.mixed_precision
    inner = optimizer_of(kind, "SGD", 1.0)
    outer = home.LossScaleOptimizer(inner)
    weight = (keras3.Variable if is_keras3(outer) else tf.Variable)([0.0])
    outer.build([weight]) if kind != "legacy" else None
    _begin()
    with tracer.record() as recording:
        for optimizer in (outer, inner) if first == "outer" else (inner, outer):
            _step(optimizer, weight)
    trace = recording.trace()
    assert (trace.updates(), trace.steps, trace.complete) == (2, 2, True)
    assert [each.root for each in trace.optimizers] == [0, 0]
    assert "LossScale" in trace.optimizers[0].class_name
    assert not registry.is_traced(outer) and not registry.is_traced(inner)


class _Parts(legacy.SGD):  # type: ignore[misc, name-defined]
    """Steps by those that are put into a list of it."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.__dict__["parts"] = []

    def apply_gradients(self, pairs: Any, *args: Any, **kwargs: Any) -> None:
        for each in self.__dict__["parts"]:
            each.apply_gradients(pairs, *args, **kwargs)


def test_a_block_follows_its_optimizer_to_the_recorder_of_one_that_it_holds() -> None:
    outer, inner, weight = _Parts(), legacy.SGD(1.0), tf.Variable([0.0])
    with tracer.record():
        _step(inner, weight)
    with tracer.assert_updates(outer, dense=1):
        outer.__dict__["parts"].append(inner)
        _step(outer, weight)
    assert not registry.is_traced(outer)
    assert not registry.is_traced(inner)


def test_of_two_that_were_traced_apart_the_inner_one_steps() -> None:
    outer, inner, weight = _Parts(), legacy.SGD(1.0), tf.Variable([0.0])
    with tracer.record():
        _step(inner, weight)
        _step(outer, weight)
    outer.__dict__["parts"].append(inner)
    with tracer.record() as recording:
        _step(outer, weight)
    assert weight.numpy() == [-2.0]
    assert any("have already trained" in each for each in recording.trace().notes)


def test_no_error_of_the_tracer_reaches_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer, weight = keras2.optimizers.SGD(1.0), tf.Variable([0.0])
    _begin()

    def hold(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(wrapping, "hold", hold)
    with pytest.warns(RuntimeWarning, match="a bug"), tracer.record() as recording:
        _step(optimizer, weight)
    assert weight.numpy() == [-1.0]
    assert not recording.trace().complete
    assert type(optimizer) is keras2.optimizers.SGD


def test_a_namesake_that_does_nothing_in_the_block_is_not_in_its_trace() -> None:
    """It is alive, with an older graph, which is traced again when it runs in a block."""
    theirs, mine = (tf.compat.v1.train.GradientDescentOptimizer(1.0) for _ in range(2))
    their_weight, weight = tf.Variable([0.0]), tf.Variable([0.0])
    old = tf.function(lambda: _step(theirs, their_weight), autograph=False)
    old()
    with tracer.record() as recording:
        _step(mine, weight)
    trace = recording.trace()
    assert (trace.steps, trace.updates(), trace.complete, trace.notes) == (1, 1, True, ())
    with tracer.record() as recording:
        _step(mine, weight)
        old()
    trace = recording.trace()
    assert (trace.updates(), their_weight.numpy(), trace.complete) == (2, [-2], True)


def test_a_train_op_of_a_program_that_has_ended() -> None:
    """Until Python collects it its graph is alive, with updates by an optimizer of that name."""

    def ended() -> None:
        with tf.Graph().as_default():
            optimizer = tf.compat.v1.train.GradientDescentOptimizer(1.0)
            weight = tf.compat.v1.get_variable("weight", [1])
            optimizer.apply_gradients([(tf.ones([1]), weight)])

    weight = tf.Variable([0.0])
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(1.0)
    _begin()
    gc.disable()
    try:
        ended()
        with tracer.record() as recording:
            _step(optimizer, weight)
    finally:
        gc.enable()
    trace = recording.trace()
    assert (trace.complete, trace.updates()) == (True, 1), trace.notes
