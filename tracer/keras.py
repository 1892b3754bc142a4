"""`TraceCallback`: what the optimizer does while `model.fit` runs, for Keras 3 and tf_keras.

This module never imports Keras: it uses the Keras that the program imported. It does not import
TensorFlow before training begins.
"""

import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

from tracer.api import trace_of, wrap
from tracer.errors import suppress_faults
from tracer.model.counts import EXECUTIONS, counting
from tracer.model.trace import Trace
from tracer.words import some


class TraceCallback:
    """A callback for `model.fit` that prints after every `every` batches what the optimizer did.

    With `steps_per_execution`, `every` counts executions.

    It wraps the model's optimizer when training begins, if it is not wrapped yet. `trace` is the
    trace so far.

    It reads the counters only for a line. It does not use the logs of batches, so Keras need not
    wait for the device on its account.

    Once training has begun, it raises nothing: after an error, such as an optimizer that cannot be
    traced, it prints one line to standard error, and then no more.

    Raises `ValueError` for an `every` below 1, and `RuntimeError` if no Keras was imported.

    >>> import keras, tracer.keras
    >>> callback = tracer.keras.TraceCallback(every=100)
    >>> isinstance(callback, keras.callbacks.Callback)
    True
    """

    async_safe = True
    """Tells Keras 3 not to wait for the callback. With the TensorFlow backend, Keras 3.15 waits for
    the logs of each batch anyway.
    """

    def __new__(cls, *args: object, **options: object) -> "TraceCallback":
        homes = (
            getattr(sys.modules.get(name), "callbacks", None) for name in ("keras", "tf_keras")
        )
        bases = dict.fromkeys(each.Callback for each in homes if each is not None)
        if not bases:
            raise RuntimeError("import keras or tf_keras before you make a TraceCallback")
        described = {"__module__": cls.__module__, "__doc__": cls.__doc__}
        return object.__new__(type(cls.__name__, (cls, *bases), described))

    def __init__(self, every: int = 100) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1, not {every}")
        self.every = every
        self.validation_data = self._chief_worker_only = None  # as in the Keras classes
        self._supports_tf_logs = True  # tf_keras need not copy logs from the device
        self._model: Any = None
        self.params: Mapping[str, object] = {}
        self._lock = threading.Lock()
        self._faults = _Faults()

    def set_model(self, model: object) -> None:
        """Called by Keras with the model that is trained."""
        self._model = model

    @property
    def model(self) -> object:
        """The model that is trained."""
        return self._model

    @property
    def trace(self) -> Trace:
        """The trace of the model's optimizer so far."""
        return trace_of(self._model.optimizer)

    def on_train_begin(self, logs: object = None) -> None:
        """Wrap the optimizer."""
        self._faults = _Faults()
        with self._faults:
            wrap(self._model.optimizer)
            self._last = self.trace.steps  # the last step of the last line
            self._calls = 0

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Print a line after `every` calls: `steps_per_execution` makes several batches one."""
        with self._faults, self._lock:  # Keras 3 calls from several threads
            self._calls += 1
            if self._calls % self.every == 0:
                self._print()

    def on_train_end(self, logs: object = None) -> None:
        """Print the line of the last steps."""
        with self._faults:
            self._print()

    def _print(self) -> None:
        """Print a line about the steps since the last one."""
        trace = self.trace
        first, last = self._last + 1, trace.steps
        if last >= first and not self._faults.seen:
            self._last = last
            start = "\n" if self.params.get("verbose") == 1 else ""  # the progress bar's line
            print(f"{start}tracer: {line(trace, first, last)}", flush=True)


class _Faults(suppress_faults):
    """Suppresses errors of the tracer in a training, and prints the first one."""

    seen = False

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        is_fault = super().__exit__(kind, error, traceback)
        if is_fault and not self.seen:
            self.seen = True
            with suppress(Exception):  # standard error may be closed
                text = " ".join(f"{type(error).__name__}: {error}".split())
                line = f"tracer: TraceCallback stopped, the training goes on: {text}"
                print(line, file=sys.stderr, flush=True)
        return is_fault


def line(trace: Trace, first: int, last: int) -> str:
    """The updates in the steps from `first` to `last`, on one line."""
    steps = f"steps {first:,} to {last:,}" if last > first else f"step {first:,}"
    if trace.counts.step_unknown(counting(EXECUTIONS, None)):
        return f"{steps}: updates are unknown, because the trace lost details of some steps"
    within = range(first, last + 1)
    runs = [run for run in trace.per_step("updates") if run[0] <= last and first <= run[1]]
    empty = sum(min(b, last) - max(a, first) + 1 for a, b, count in runs if not count)
    dense, sparse = (trace.updates(kind=kind, step=within) for kind in ("dense", "sparse"))
    rates = [count for *_, count in runs]
    rate = some((min(rates), max(rates)), "update")
    skipped = f"; {empty:,} of the steps updated nothing" if empty else ""
    per = "per step, all replicas," if len(trace.replicas) > 1 else "per step,"
    return f"{steps}: {rate} {per} {dense:,} dense and {sparse:,} sparse{skipped}"
