"""`tracer.record` finds every optimizer that is used in its block, however it was made."""

import copy
import functools
import gc
import inspect
import pickle
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.libraries import is_keras3, keras2, keras3

import tracer
from tracer.core import registry
from tracer.core.instances import instances

legacy = keras2.optimizers.legacy


def _step(optimizer: Any, *weights: Any) -> None:
    optimizer.apply_gradients([(tf.ones_like(weight), weight) for weight in weights])


def _trace(step: Callable[[], None]) -> None:
    tf.function(step).get_concrete_function()


@pytest.mark.parametrize("is_used", [False, True])
def test_an_optimizer_that_was_made_in_the_block_has_a_row_without_a_step(is_used: bool) -> None:
    """Also if it is gone. Its name is the one of now, or of its first step if it is gone."""
    weight, before = tf.Variable([0.0]), legacy.Adam()
    with tracer.record() as recording:
        used, gone, alive = legacy.SGD(1.0), legacy.Nadam(name="gone"), legacy.Adam()
        outer = keras2.mixed_precision.LossScaleOptimizer(legacy.Ftrl())
        for optimizer in (gone, used, outer) if is_used else ():
            _step(optimizer, weight)
        used._name = "renamed"
        del gone
    trace = recording.trace()
    names = [each.class_name.rpartition(".")[2] for each in trace.optimizers]
    assert sorted(names) == ["Adam", "Ftrl", "LossScaleOptimizer", "Nadam", "SGD"]
    assert {"renamed", "gone" if is_used else "Nadam"} <= {each.name for each in trace.optimizers}
    assert trace.complete and alive is not before


@pytest.mark.parametrize("way", ["eager", "traced", "graph", "session"])
def test_only_what_ran_in_the_block_is_in_its_trace(way: str) -> None:
    """Two optimizers were used before; in the block one of them is, only by what Python calls it
    for, only while a graph is traced, only by a graph of before, or only by a Session.
    """
    graph, runs = tf.Graph(), []
    for optimizer in (tracer.wrap(legacy.SGD(1.0)), tracer.wrap(legacy.SGD(1.0, name="Other"))):
        if way == "session":
            with graph.as_default():
                weight = tf.compat.v1.get_variable(optimizer._name, [1])
                op = optimizer.apply_gradients([(tf.ones([1]), weight)])
                start = tf.compat.v1.global_variables_initializer()
            session = tf.compat.v1.Session(graph=graph)
            session.run(start)
            run = functools.partial(session.run, op)
        else:
            weight = tf.Variable([0.0])
            run = functools.partial(_step, optimizer, weight)
            if way == "graph":
                run = tf.function(run)
            elif way == "traced":
                run = functools.partial(_trace, run)
        run()
        runs.append((optimizer, run))
    with tracer.record() as recording:
        runs[1][1]()
    trace = recording.trace()
    assert [each.name for each in trace.optimizers] == ["Other"]
    assert trace.calls("apply_gradients") == (1 if way in ("eager", "traced") else 0)
    assert trace.updates() == (0 if way == "traced" else 1)
    for optimizer, _ in runs:
        tracer.unwrap(optimizer)


MAKERS: dict[str, Callable[[], Any]] = {
    "by name": lambda: _compiled(keras, "adam"),
    "deserialized": lambda: keras.optimizers.deserialize(
        keras.optimizers.serialize(keras.optimizers.SGD())
    ),
    "loss scale, keras3": lambda: keras3.optimizers.LossScaleOptimizer(keras3.optimizers.SGD()),
    "loss scale, legacy": lambda: keras2.mixed_precision.LossScaleOptimizer(legacy.SGD()),
    "subclass": lambda: type("Mine", (keras.optimizers.SGD,), {})(),
    "v1": lambda: tf.compat.v1.train.MomentumOptimizer(0.1, 0.9),
}


def _compiled(library: Any, name: str) -> Any:
    model = library.Sequential([library.layers.Dense(1)])
    model.compile(name, "mse")
    return model.optimizer


@pytest.mark.parametrize("how", MAKERS)
def test_however_it_is_made(how: str) -> None:
    with tracer.record() as recording:
        optimizer = MAKERS[how]()
        weight = (keras3.Variable if is_keras3(optimizer) else tf.Variable)([0.0])
        for _ in range(3):
            _step(optimizer, weight)
    trace = recording.trace()
    assert (trace.steps, trace.updates(), trace.complete) == (3, 3, True)
    assert not registry.is_traced(optimizer)


def test_an_optimizer_that_died_is_still_counted() -> None:
    weight = tf.Variable([0.0])
    with tracer.record() as recording:
        for _ in range(3):
            _step(legacy.SGD(1.0), weight)
            gc.collect()
    assert recording.trace().updates() == 3


def test_an_object_whose_class_cannot_be_hashed_is_no_matter() -> None:
    class Unhashable(type):
        def __eq__(cls, other: object) -> bool:
            raise RuntimeError("nobody should ask")

    class Own(metaclass=Unhashable):
        pass

    kept = Own()
    with tracer.record() as recording:
        pass
    assert recording.trace().steps == 0
    assert kept is not None


@pytest.mark.parametrize("make", [legacy.SGD, tf.compat.v1.train.GradientDescentOptimizer])
def test_a_bound_method_that_was_taken_in_a_block_works_after_it(make: Any) -> None:
    """As that which a wrapper around a method keeps."""
    optimizer, weight = make(1.0), tf.Variable([0.0])
    with tracer.record():
        step = optimizer.apply_gradients
        step([(tf.ones(1), weight)])
    step([(tf.ones(1), weight)])
    with tracer.record() as recording:
        step([(tf.ones(1), weight)])
    assert recording.trace().steps == recording.trace().updates() == 1
    assert weight.numpy() == -3


@pytest.mark.parametrize("place", ["_listen", "recorder_of", "Recording.trace"])
def test_an_exception_at_the_end_of_a_block_leaves_nothing_wrapped(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a signal handler, or Ctrl-C: the end runs once more."""
    optimizer, weight = legacy.SGD(1.0), tf.Variable([0.0])

    def interrupt(*args: Any) -> Any:
        monkeypatch.undo()
        raise TimeoutError

    with pytest.raises(TimeoutError), tracer.record() as recording:
        _step(optimizer, weight)
        monkeypatch.setattr(f"tracer.hooks.recording.{place}", interrupt)
    assert not registry.is_traced(optimizer)
    _step(optimizer, weight)
    trace = recording.trace()
    assert (trace.updates(), trace.complete) == (1, True)


def test_a_thread_may_fill_a_tuple_while_another_walks() -> None:
    """`tuple` raises if anything refers to the tuple that it fills, and lets its iterator run."""
    walked, interval = threading.Event(), sys.getswitchinterval()

    def fill() -> None:
        while not walked.is_set():
            tuple(number for number in range(100))

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as pool:
            filled = [pool.submit(fill) for _ in range(2)]
            for _ in range(5):
                instances([legacy.SGD])
            walked.set()
    finally:
        sys.setswitchinterval(interval)
    assert [each.exception() for each in filled] == [None, None]


_sgd: Any = legacy.SGD


class Copied(_sgd):  # type: ignore[misc]
    """Has a way of its own to be copied."""

    def __copy__(self) -> Any:
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin


class Scaled(_sgd):  # type: ignore[misc]
    """Has a `__new__` of its own."""

    def __new__(cls, rate: float = 1.0, scale: float = 2.0) -> Any:
        made = super().__new__(cls)
        made.__dict__["scale"] = scale
        return made

    def __init__(self, rate: float, scale: float = 2.0) -> None:
        super().__init__(rate)

    def __getnewargs__(self) -> Any:
        return 1.0, self.__dict__["scale"]


def _unpickled(optimizer: Any) -> Any:
    return pickle.loads(pickle.dumps(optimizer))


COPIED: dict[str, Any] = {
    "legacy": lambda: legacy.SGD(1.0),
    "keras2": lambda: keras2.optimizers.SGD(1.0, jit_compile=False),
    "keras3": lambda: keras3.optimizers.SGD(1.0),
    "v1": lambda: tf.compat.v1.train.GradientDescentOptimizer(1.0),
    "its own __copy__": lambda: Copied(1.0),
    "its own __new__": lambda: Scaled(1.0, 3.0),
}
COPIERS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deep copy": copy.deepcopy,
    "pickle": _unpickled,
}
NO_COPIES = {("legacy", "pickle"), ("keras2", "deep copy"), ("keras2", "pickle")} | {
    (kind, "pickle") for kind in ("its own __copy__", "its own __new__")
}
"""The frameworks themselves raise."""


@pytest.mark.parametrize(
    ("kind", "how"),
    [(kind, how) for kind in COPIED for how in COPIERS if (kind, how) not in NO_COPIES],
)
def test_a_copy_between_blocks_is_counted(kind: str, how: str) -> None:
    original = COPIED[kind]()
    weight = (keras3.Variable if kind == "keras3" else tf.Variable)([0.0])
    with tracer.record():
        pass
    for shown in (-5, -11):
        twin = COPIERS[how](original)
        gc.collect()  # the copy is no young object any more
        with tracer.record() as recording:
            for _ in range(5):
                _step(twin, weight)
        trace = recording.trace()
        assert np.asarray(weight) == [shown]
        assert (trace.updates(), trace.steps, trace.complete) == (5, 5, True)
        with tracer.record() as recording:
            twin = COPIERS[how](original)
            _step(twin, weight)
        trace = recording.trace()
        assert (trace.updates(), trace.complete) in ((0, False), (1, True))
        assert trace.complete or "was made in a way that the tracer does not see" in trace.notes[0]
        original = twin


def test_a_patched_class_makes_instances_as_before() -> None:
    with tracer.record():
        pass

    class Named:
        def __new__(cls, *args: Any, **options: Any) -> Any:
            made = super().__new__(cls)
            made.__dict__["arguments"] = args
            return made

    class Mixed(_sgd, Named):  # type: ignore[misc]
        pass

    assert vars(Mixed(0.5))["arguments"] == (0.5,)
    assert Scaled(1.0, 3.0).__dict__["scale"] == 3.0

    class Passing(_sgd):  # type: ignore[misc]
        def __new__(cls, *args: Any) -> Any:
            return super().__new__(cls, *args)

    with pytest.raises(TypeError, match="takes exactly one argument"):
        Passing(0.5)
    base = tf.compat.v1.train.Optimizer
    assert [*inspect.signature(base).parameters][:2] == ["use_locking", "name"]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'name'"):
        base(False)


def test_nobody_is_kept_alive() -> None:
    with tracer.record():
        _step(legacy.SGD(1.0), tf.Variable([0.0]))
    optimizer = legacy.SGD(1.0)
    gone = weakref.ref(optimizer)
    with tracer.record():
        pass
    del optimizer
    gc.collect()
    assert gone() is None
