"""`tracer demo`: train a small model with two optimizers, and compare the counts with a mock's.

All numbers are counted in this process: by `tracer` in one training, and by `unittest.mock` in a
second training of the same kind that is not traced.
"""

import os
from importlib import import_module, util
from unittest import mock

import tracer
from tracer.errors import Mistake

METHODS = ("_resource_apply_dense", "_resource_apply_sparse", "update_step")
"""The methods, of any of the optimizers, that update a variable and that one would mock."""


def main() -> None:
    """Train 16 steps each time, and print the executions next to what a mock counts.

    Raises `Mistake` if TensorFlow is not installed.
    """
    if util.find_spec("tensorflow") is None:
        raise Mistake("the demo trains with TensorFlow: pip install tensorflow tf_keras")
    os.environ.update(KERAS_BACKEND="tensorflow", CUDA_VISIBLE_DEVICES="-1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import keras
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
    optimizers = {f"Keras {keras.__version__.split('.')[0]}": keras.optimizers.Adam}
    if util.find_spec("tf_keras") is not None:
        optimizers["tf_keras"] = import_module("tf_keras").optimizers.legacy.Adam
    rows = [("Adam of", "method", "executions", "a mock says")]
    for label, optimizer in optimizers.items():
        plain = {name: getattr(optimizer, name) for name in METHODS if hasattr(optimizer, name)}
        with tracer.record() as recording:
            _train(optimizer)
        mocks = {name: mock.create_autospec(own, side_effect=own) for name, own in plain.items()}
        with mock.patch.multiple(optimizer, **mocks):
            _train(optimizer)
        for name, calls in mocks.items():
            counted = str(recording.trace().executions(name))
            rows.append((label, name, counted, str(calls.call_count)))
    print("16 steps each time, of 5 variables: an embedding and two dense layers.\n")
    for label, name, counted, mocked in rows:
        print(f"  {label:8}   {name:22}   {counted:>10}   {mocked:>11}")
    print("\nA mock sees Python calls: Python runs while a graph is traced, not when it runs.")


def _train(optimizer: type) -> None:
    """Run `model.fit` with an embedding and two dense layers: 256 samples, twice, by 32."""
    import numpy as np

    keras = import_module(optimizer.__module__.partition(".")[0])
    sentences = np.random.default_rng(0).integers(0, 1000, (256, 8))
    model = keras.Sequential(
        [
            keras.layers.Embedding(1000, 8),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(8, "relu"),
            keras.layers.Dense(1, "sigmoid"),
        ]
    )
    model.compile(optimizer(), loss="binary_crossentropy")
    model.fit(sentences, sentences[:, :1] // 500, batch_size=32, epochs=2, verbose=0)
