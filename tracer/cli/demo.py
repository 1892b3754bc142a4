"""`tracer demo`: one small model trained four ways, the answers, and what a mock makes of it.

Every number shown is counted in this process: by `tracer` in one training, and by `unittest.mock`
in a second training of the same kind that is not traced.
"""

import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module, util
from itertools import count
from typing import Any
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


@dataclass(frozen=True)
class Choice:
    """An optimizer of the demo."""

    label: str
    keras: str
    """The package whose models it trains."""
    make: Callable[[], Any]
    methods: list[str]
    """The methods that update a variable, which one would mock."""


@dataclass(frozen=True)
class Result:
    """What `tracer` and the mocks counted for one optimizer under one strategy."""

    choice: Choice
    replicas: int
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
    out = Console(highlight=False, soft_wrap=False)
    if len(choices) < 2:
        print(
            "tf_keras is not installed, so its legacy optimizer is left out: "
            "pip install 'optimizer-tracer[legacy]'",
            file=sys.stderr,
        )
    with _progress(4 * len(choices)) as advance:
        results = [
            _result(choice, replicas, advance) for replicas in (1, REPLICAS) for choice in choices
        ]
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

    choices = []
    if util.find_spec("tf_keras") is not None:
        legacy = import_module("tf_keras").optimizers.legacy.Adam
        methods = ["_resource_apply_dense", "_resource_apply_sparse"]
        choices.append(Choice("Adam of tf_keras (legacy)", "tf_keras", legacy, methods))
    major = keras.__version__.split(".")[0]
    methods = ["update_step"]
    choices.append(Choice(f"Adam of Keras {major}", "keras", keras.optimizers.Adam, methods))
    return choices


def _result(choice: Choice, replicas: int, advance: Callable[[str], None]) -> Result:
    what = f"{choice.label}, {_way(replicas)}"
    advance(f"{what}: with tracer")
    optimizer = _train(choice, replicas, tracer.wrap)
    advance(f"{what}: with a mock")
    with _mocked(choice) as mocks:
        _train(choice, replicas, lambda plain: plain)
    calls = {name: each.call_count for name, each in mocks.items()}
    return Result(choice, replicas, tracer.trace_of(optimizer), calls)


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


def _scope(replicas: int) -> AbstractContextManager[object]:
    """The scope of a strategy with one logical CPU for each replica; the default one for one."""
    if replicas == 1:
        return nullcontext()
    import tensorflow as tf

    scope: AbstractContextManager[object] = tf.distribute.MirroredStrategy(
        [f"CPU:{number}" for number in range(replicas)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    ).scope()
    return scope


@contextmanager
def _mocked(choice: Choice) -> Iterator[dict[str, Any]]:
    """Mocks of the apply methods that count the calls and let them through."""
    base = type(choice.make())
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                mock.patch.object(base, name, autospec=True, side_effect=getattr(base, name))
            )
            for name in choice.methods
        }


@contextmanager
def _progress(total: int) -> Iterator[Callable[[str], None]]:
    """A bar on standard error while it is a terminal; yields what to call before each training."""
    console = Console(stderr=True)
    columns = (BarColumn(20), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("starting", total=total)
        done = count()
        yield lambda what: bar.update(task, description=what, completed=next(done))


# What is printed.


def _way(replicas: int) -> str:
    return "model.fit" if replicas == 1 else f"MirroredStrategy, {replicas} replicas"


def _shown(results: list[Result]) -> Group:
    choices = list(dict.fromkeys(result.choice.label for result in results))
    updates = sum(result.trace.updates() for result in results)
    calls = sum(sum(result.mocked.values()) for result in results)
    return Group(
        Text(
            f"One embedding and two dense layers, {SAMPLES} samples, batches of {BATCH}, {EPOCHS} "
            f"epochs: {SAMPLES // BATCH * EPOCHS} steps.\n"
        ),
        _answers(results, choices),
        Text(),
        _mocks(results),
        Text(
            f"\nA mock sees Python calls: {calls:,} in all, while {updates:,} updates were "
            "executed. Python runs when a graph is traced, not when it executes."
        ),
    )


def _answers(results: list[Result], choices: list[str]) -> Table:
    """The answers, one column for each optimizer and one row for each way of training."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, expand=True)
    for label in choices:
        table.add_column(label, ratio=1)
    for replicas in dict.fromkeys(result.replicas for result in results):
        if table.row_count:
            table.add_row()
        table.add_row(*(Rule(_way(replicas), align="left", style="dim") for _ in choices))
        table.add_row(*(Text(r.trace.answer()) for r in results if r.replicas == replicas))
    return table


def _mocks(results: list[Result]) -> Table:
    """Executions beside what a mock says, method by method."""
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("executions", justify="right")
    table.add_column("a mock says", justify="right")
    for result in results:
        way, *_ = _way(result.replicas).split(",")
        table.add_row(Text(f"{result.choice.label}, {way}", style="bold"))
        for name in result.choice.methods:
            ran = result.trace.executions(name)
            table.add_row(Text(f"  {name}"), f"{ran:,}", f"{result.mocked[name]:,}")
    return table
