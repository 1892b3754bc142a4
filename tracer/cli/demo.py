"""`tracer demo`: one small model trained four ways, the answers, and what a mock makes of it.

Every number shown is counted in this process: by `tracer` in one training, and by `unittest.mock`
in a second training of the same kind that is not traced.
"""

import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from importlib import import_module, util
from itertools import groupby
from typing import Any, NamedTuple
from unittest import mock

from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

import tracer
from tracer.api import CallTrace
from tracer.errors import MissingExtra

SAMPLES, WORDS, LENGTH = 256, 1_000, 8
BATCH, EPOCHS = 32, 2
REPLICAS = 2


class Choice(NamedTuple):
    """An optimizer of the demo."""

    label: str
    keras: str
    """The package whose models it trains."""
    make: Callable[[], Any]
    methods: tuple[str, ...]
    """The methods that update a variable, which one would mock."""


class Result(NamedTuple):
    """What `tracer` and the mocks counted for one optimizer under one strategy."""

    choice: Choice
    way: str
    trace: CallTrace
    mocked: dict[str, int]
    """The calls that a mock of each method counted."""


def main() -> None:
    """Train, and print the answers; standard output gets them, standard error the progress.

    Raises `MissingExtra`, an `ImportError`, if TensorFlow is not installed.
    """
    if util.find_spec("tensorflow") is None:
        raise MissingExtra(
            "the demo trains with TensorFlow: pip install 'optimizer-tracer[tensorflow,legacy]'"
        )
    _prepare()
    choices = _choices()
    if len(choices) < 2:
        print(
            "tf_keras is not installed, so its legacy optimizer is left out: "
            "pip install 'optimizer-tracer[legacy]'",
            file=sys.stderr,
        )
    console = Console(stderr=True)
    columns = (BarColumn(20), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("starting", total=4 * len(choices))
        results = [
            _result(choice, replicas, partial(bar.update, task))
            for replicas in (1, REPLICAS)
            for choice in choices
        ]
    out = Console(highlight=False, soft_wrap=False)
    with out.capture() as captured:
        out.print(_shown(results))
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _prepare() -> None:
    """Set up TensorFlow, which must not have started yet, for two devices and little noise."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # With fewer threads, MirroredStrategy over logical CPUs can hang for good on 2 cores.
    os.environ.setdefault("TF_NUM_INTEROP_THREADS", "16")
    os.environ["KERAS_BACKEND"] = "tensorflow"
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    with _quiet():
        import tensorflow as tf

        tf.config.set_visible_devices([], "GPU")
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(REPLICAS)]
        )
        tf.config.list_logical_devices()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep from standard error what TensorFlow's libraries write there as they are loaded.

    `TF_CPP_MIN_LOG_LEVEL` comes too late for that: they write before they have read it. It is all
    shown after an exception, and where that variable asks for warnings.
    """
    if os.environ["TF_CPP_MIN_LOG_LEVEL"] in ("0", "1"):
        yield
        return
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as kept:
        os.dup2(kept.fileno(), 2)
        try:
            yield
        except BaseException:
            kept.seek(0)
            os.write(saved, kept.read())
            raise
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def _choices() -> list[Choice]:
    import keras

    major = keras.__version__.split(".")[0]
    choices = [Choice(f"Adam of Keras {major}", "keras", keras.optimizers.Adam, ("update_step",))]
    if util.find_spec("tf_keras") is not None:
        legacy = import_module("tf_keras").optimizers.legacy.Adam
        methods = ("_resource_apply_dense", "_resource_apply_sparse")
        choices.insert(0, Choice("Adam of tf_keras (legacy)", "tf_keras", legacy, methods))
    return choices


def _result(choice: Choice, replicas: int, show: Callable[..., None]) -> Result:
    way = "model.fit" if replicas == 1 else f"MirroredStrategy, {replicas} replicas"
    show(description=f"{choice.label}, {way}: with tracer")
    optimizer = _train(choice, replicas, tracer.wrap)
    show(description=f"{choice.label}, {way}: with a mock", advance=1)
    base = type(choice.make())
    with ExitStack() as stack:
        mocks = {
            name: stack.enter_context(
                mock.patch.object(base, name, autospec=True, side_effect=getattr(base, name))
            )
            for name in choice.methods
        }
        _train(choice, replicas, lambda plain: plain)
    show(advance=1)
    calls = {name: each.call_count for name, each in mocks.items()}
    return Result(choice, way, tracer.trace_of(optimizer), calls)


def _train(choice: Choice, replicas: int, prepare: Callable[[Any], Any]) -> Any:
    """`model.fit` with an embedding and two dense layers, on data made here; the optimizer.

    `prepare` gets the optimizer first, and returns the one to train with.
    """
    import numpy as np

    keras = import_module(choice.keras)
    random = np.random.default_rng(0)
    sentences = random.integers(0, WORDS, (SAMPLES, LENGTH))
    labels = (sentences.mean(axis=1) > WORDS / 2).astype("float32")[:, None]
    keras.utils.set_random_seed(0)
    with _scope(replicas):
        optimizer = prepare(choice.make())
        model = keras.Sequential(
            [
                keras.layers.Embedding(WORDS, 8),
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(8, activation="relu"),
                keras.layers.Dense(1, activation="sigmoid"),
            ]
        )
        model.compile(optimizer, loss="binary_crossentropy")
    model.fit(sentences, labels, batch_size=BATCH, epochs=EPOCHS, verbose=0)
    return optimizer


def _scope(replicas: int) -> Any:
    """The scope of a strategy with one logical CPU for each replica; the default one for one."""
    if replicas == 1:
        return nullcontext()
    import tensorflow as tf

    return tf.distribute.MirroredStrategy(
        [f"CPU:{number}" for number in range(replicas)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    ).scope()


# What is printed.


def _shown(results: list[Result]) -> Group:
    updates = sum(result.trace.updates() for result in results)
    calls = sum(sum(result.mocked.values()) for result in results)
    return Group(
        Text(
            f"One embedding and two dense layers, {SAMPLES} samples, batches of {BATCH}, {EPOCHS} "
            f"epochs: {SAMPLES // BATCH * EPOCHS} steps.\n"
        ),
        _answers(results),
        Text(),
        _mocks(results),
        Text(
            f"\nA mock sees Python calls: {calls:,} in all, while {updates:,} updates were "
            "executed. Python runs when a graph is traced, not when it executes."
        ),
    )


def _answers(results: list[Result]) -> Table:
    """The answers, one column for each optimizer and one row for each way of training."""
    labels = dict.fromkeys(result.choice.label for result in results)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, expand=True)
    for label in labels:
        table.add_column(label, ratio=1)
    for way, group in groupby(results, lambda result: result.way):
        if table.row_count:
            table.add_row()
        table.add_row(*(Rule(way, align="left", style="dim") for _ in labels))
        table.add_row(*(Text(result.trace.answer()) for result in group))
    return table


def _mocks(results: list[Result]) -> Table:
    """Executions beside what a mock says, method by method."""
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("executions", justify="right")
    table.add_column("a mock says", justify="right")
    for result in results:
        way, *_ = result.way.split(",")
        table.add_row(Text(f"{result.choice.label}, {way}", style="bold"))
        for name, calls in result.mocked.items():
            table.add_row(Text(f"  {name}"), f"{result.trace.executions(name):,}", f"{calls:,}")
    return table
