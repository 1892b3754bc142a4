"""Locks are taken in their order, and no code of the program runs under one."""

import threading
from typing import Any

import keras as keras3
import pytest
import tensorflow as tf
from support.locks import watched

import tracer


class Named(keras3.optimizers.SGD):  # type: ignore[misc]
    """Its attributes are computed by code of the program."""

    @property
    def name(self) -> str:
        return "named"

    @name.setter
    def name(self, value: str) -> None:
        pass

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(gradient, variable, learning_rate)


class Halving(keras3.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    def __call__(self, step: Any) -> Any:
        return 0.5 / (1.0 + tf.cast(step, tf.float32))


class Weight(keras3.Variable):  # type: ignore[misc]
    """Its attributes are computed by code of the program."""

    @property
    def path(self) -> str:
        return "model/weight"


def _train(optimizer: Any, weights: list[Any], compiled: bool) -> None:
    def step() -> None:
        optimizer.apply_gradients([(tf.ones(2), each) for each in weights])

    train_step = tf.function(step) if compiled else step
    for _ in range(20):
        train_step()


@pytest.mark.parametrize("effects", [False, True])
def test_steps_and_reads_in_threads(effects: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(monkeypatch, "counters", "ledger", "rows", "paths"):
        optimizers = [Named(Halving()) for _ in range(3)]
        weights = [[Weight([1.0, 2.0]), keras3.Variable([1.0, 2.0])] for _ in optimizers]
        for each in optimizers[1:]:
            tracer.wrap(each, effects=effects)
        with tracer.record(effects=effects) as recording:
            threads = [
                threading.Thread(target=_train, args=(optimizers[at], weights[at], at != 1))
                for at in (0, 1, 1, 2)
            ]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                recording.trace()
        trace = recording.trace()
        for each in optimizers[1:]:
            tracer.trace_of(each)
    assert trace.updates() == 160


@pytest.mark.long
def test_replicas_of_a_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(monkeypatch, "counters", "ledger", "rows", "paths"):
        strategy = tf.distribute.MirroredStrategy(
            ["/cpu:0", "/cpu:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
        )
        with strategy.scope():
            optimizer = tracer.wrap(Named())
            weights = [keras3.Variable([1.0, 2.0])]
            optimizer.build(weights)
        compiled = tf.function(lambda: strategy.run(lambda: _train(optimizer, weights, False)))
        compiled()
        strategy.run(lambda: _train(optimizer, weights, False))
        trace = tracer.trace_of(optimizer)
    assert trace.count("updates", by="replica") == {(0,): 40, (1,): 40}
