"""`tracer demo`: train a small model four ways, and compare the counts with those of a mock.

All numbers are counted in this process: by `tracer` in one training, and by `unittest.mock` in a
second training of the same kind that is not traced.
"""

import logging
import os
import sys
from importlib import import_module, util
from typing import Any
from unittest import mock

from rich.console import Console
from rich.status import Status
from rich.text import Text

import tracer
from tracer.api import CallTrace
from tracer.errors import MissingExtra
from tracer.layout import Column, Row, Table, paragraph

SAMPLES, WORDS, LENGTH = 256, 1_000, 8
BATCH, EPOCHS = 32, 2
REPLICAS = 2
WIDTH = 80
METHODS = ("_resource_apply_dense", "_resource_apply_sparse", "update_step")
"""The methods, of any of the optimizers, that update a variable and that one would mock."""


Result = tuple[str, CallTrace, dict[str, int]]
"""A title, the trace, and how often a mock of each method was called."""


def main() -> None:
    """Train, and print the answers on standard output and the progress on standard error.

    Raises `MissingExtra`, an `ImportError`, if TensorFlow is not installed.
    """
    if util.find_spec("tensorflow") is None:
        raise MissingExtra("the demo trains with TensorFlow: pip install tensorflow tf_keras")
    _prepare()
    import keras

    optimizers = {f"Adam of Keras {keras.__version__.split('.')[0]}": keras.optimizers.Adam}
    if util.find_spec("tf_keras") is not None:
        legacy = import_module("tf_keras").optimizers.legacy.Adam
        optimizers = {"Adam of tf_keras (legacy)": legacy, **optimizers}
    else:
        print(
            "tf_keras is not installed, so its legacy optimizer is left out: pip install tf_keras",
            file=sys.stderr,
        )
    with Console(stderr=True).status("") as status:
        results = [
            _result(label, optimizer, replicas, status)
            for replicas in (1, REPLICAS)
            for label, optimizer in optimizers.items()
        ]
    Console(highlight=False, soft_wrap=True).print(Text("\n").join(_lines(results)))


def _prepare() -> None:
    """Set up TensorFlow, before it starts, with two devices and little output."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # With fewer threads, MirroredStrategy over logical CPUs can deadlock on 2 cores.
    os.environ.setdefault("TF_NUM_INTEROP_THREADS", "16")
    os.environ["KERAS_BACKEND"] = "tensorflow"
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    # Hides the output of TensorFlow's libraries while they load, before they know the level above.
    sys.stderr.flush()
    saved = os.dup(2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        import tensorflow as tf

        tf.config.set_visible_devices([], "GPU")
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(REPLICAS)]
        )
        tf.config.list_logical_devices()
    finally:
        os.dup2(saved, 2)


def _result(label: str, optimizer: Any, replicas: int, status: Status) -> Result:
    title = f"{label}, {'model.fit' if replicas == 1 else f'MirroredStrategy, {replicas} replicas'}"
    status.update(f"{title}: with tracer")
    with tracer.record() as recording:
        _train(optimizer, replicas)
    status.update(f"{title}: with a mock")
    plain = {name: getattr(optimizer, name) for name in METHODS if hasattr(optimizer, name)}
    mocks = {name: mock.create_autospec(each, side_effect=each) for name, each in plain.items()}
    with mock.patch.multiple(optimizer, **mocks):
        _train(optimizer, replicas)
    return title, recording.trace(), {name: each.call_count for name, each in mocks.items()}


def _train(optimizer: Any, replicas: int) -> None:
    """Run `model.fit` with an embedding and two dense layers, on generated data.

    Several replicas use a strategy with one logical CPU for each.
    """
    import numpy as np
    import tensorflow as tf

    keras = import_module(optimizer.__module__.partition(".")[0])
    keras.utils.set_random_seed(0)
    sentences = np.random.randint(0, WORDS, (SAMPLES, LENGTH))
    labels = (sentences.mean(axis=1) > WORDS / 2).astype("float32")[:, None]
    strategy = tf.distribute.get_strategy()
    if replicas > 1:
        strategy = tf.distribute.MirroredStrategy(
            [f"CPU:{number}" for number in range(replicas)],
            cross_device_ops=tf.distribute.ReductionToOneDevice(),
        )
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Embedding(WORDS, 8),
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(8, activation="relu"),
                keras.layers.Dense(1, activation="sigmoid"),
            ]
        )
        model.compile(optimizer(), loss="binary_crossentropy")
    model.fit(sentences, labels, batch_size=BATCH, epochs=EPOCHS, verbose=0)


def _lines(results: list[Result]) -> list[Text]:
    """The output: the answers, and for each method executions and calls of a mock."""
    table = Table("", [Column("executions"), Column("a mock says")])
    lines = paragraph(
        f"One embedding and two dense layers, {SAMPLES} samples, batches of {BATCH}, {EPOCHS} "
        f"epochs: {SAMPLES // BATCH * EPOCHS} steps.",
        WIDTH,
    )
    for title, trace, mocked in results:
        lines += [Text(), Text(title, style="bold"), *paragraph(trace.answer(), WIDTH)]
        figures = {each: (f"{trace.executions(each):,}", f"{mocked[each]:,}") for each in mocked}
        table.rows.append(Row(title, ("", ""), style="bold"))
        table.rows += [Row(f"  {method}", cells) for method, cells in figures.items()]
    calls = sum(sum(mocked.values()) for _, _, mocked in results)
    updates = sum(trace.updates() for _, trace, _ in results)
    why = (
        f"A mock sees Python calls: {calls:,} in all, while {updates:,} updates were executed. "
        "Python runs when a graph is traced, not when it executes."
    )
    return [*lines, Text(), *table.lines(WIDTH), Text(), *paragraph(why, WIDTH)]
