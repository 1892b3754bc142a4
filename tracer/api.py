"""What users call: `trace_of`, `record`, `load`, `merge`, `report`; and `CallTrace`, what they get.

The one place that knows those who count, those who keep, those who judge and those who show. What
stands below gives plain `Trace`s; here they become what a user can ask for an answer, for findings
and for a file. Everything but `Trace` is imported when it is first needed: a saved trace is read
and asked on a machine that has no TensorFlow, and no report is loaded to count.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeVar

from tracer.backends.objects import name_of
from tracer.core import collectors
from tracer.core.collectors import Collector
from tracer.errors import OptimizerWarning, is_mistake
from tracer.model.trace import Trace

if TYPE_CHECKING:
    from tracer.core.recorder import Recorder
    from tracer.findings.run_rules import Finding
    from tracer.hooks import recording
    from tracer.reporters.tables import By


T = TypeVar("T")

__tracebackhide__ = is_mistake


def _collectors() -> Sequence[type[Collector]]:
    from tracer.evidence.collector_list import COLLECTORS

    return COLLECTORS


collectors.shared = _collectors


class CallTrace(Trace):
    """A frozen trace of one or more optimizers: exact counts, per variable, step and replica.

    Made by `tracer.trace_of`, `tracer.record` and `tracer.load`, never by hand. All filters are
    optional and combine with *and*:

    - `kind`: `"dense"` or `"sparse"` (the gradient was a `tf.IndexedSlices`); for requests also
      `"none"`.
    - `variable`: a name, a glob (`"encoder/*"`), or the variable itself; a sharded variable stands
      for all of its shards.
    - `step`: a step, numbered from 1 on each replica, or a `range` of steps.
    - `replica`: its id, an int; `worker`: its name, as TensorFlow has it (`"worker:0"`).
    - `optimizer`: its name or a glob.
    - `method`: the name of an intercepted method.

    A filter that names what the trace does not hold raises `tracer.UnknownName`.
    """

    def answer(self) -> str:
        """How often the apply methods ran, in two sentences, for this run."""
        from tracer.reporters.answer import answer

        return answer(self)

    def findings(self) -> "list[Finding]":
        """What looks wrong in the run, errors first, with why it matters and what to do.

        An empty list for a healthy run. `tracer explain CODE` says when a rule finds something.
        """
        from tracer.findings.run_rules import findings

        return findings(self)

    def without_paths(self) -> "CallTrace":
        """The trace with each file named by its name alone, to be shown to others.

        Lines of callers, of optimizers and of remarks, notes and errors lose the folders that they
        name; commands lose all arguments of the program. Functions, line numbers, names of
        variables and all counts stay.
        """
        from tracer.model.redaction import without_paths

        shared = without_paths(self)
        return CallTrace(shared.data, shared.objects)

    def save(self, path: str | Path) -> None:
        """Write the trace to `path`, a trace file that `tracer.load` reads; a URL needs an extra.

        In a folder that exists the file is named by the worker (`worker-0.json`), so that each
        worker of a run can save to the same folder, which `tracer.load` then reads as one run.

        Raises `tracer.TraceFileError` if it cannot be written; what stood there before is kept.
        """
        from tracer.model import tracefile

        tracefile.save(self._data, tracefile.file_at(path, self))

    def _repr_html_(self) -> str:
        """The report, which a notebook shows for a trace in the last line of a cell."""
        from tracer.reporters.formats import for_notebook

        return for_notebook(self)


class Recording:
    """What `record` yields; `trace` gives a snapshot, while the block runs and after it."""

    def __init__(self, counted: "recording.Recording | None" = None) -> None:
        from tracer.hooks import recording

        self.counted = recording.Recording() if counted is None else counted
        """What counts for it, for the command and the fixtures: it takes more optimizers."""

    def trace(self) -> CallTrace:
        """A frozen trace of what ran since the block began, of every optimizer that was used."""
        return self.counted.trace().derived(_call_trace)  # after the block always the same one

    def __repr__(self) -> str:
        return f"<Recording: its trace() is {self.trace()!r}>"


def wrap(optimizer: T, *, retrace: bool = True, effects: bool = False) -> T:
    """Trace every call of `optimizer` from now on; returns the same object.

    Of optax, a transformation of the same class is returned, with the same `init`: train with that
    one. The one that was given is not counted.

    Optimizers nested in it (a loss scale's inner one, for example) are traced with it. Wrapping
    twice is wrapping once; wrapping again after `unwrap` goes on with the same trace. What a block
    of `record` counted before the optimizer was wrapped first is not part of its trace, nor is what
    one counted after `unwrap`; if it is wrapped again after that, the trace is incomplete.

    A `tf.function` that was traced with the optimizer before is traced again at its next call, so
    that it is counted, too; the trace says which. Stateful random ops in it begin their sequence
    again, and what it reads in Python (`trainable`, a float) is read again. With `retrace=False` it
    keeps its graph. What runs in such a graph is not counted; the
    trace then says so, as it does for what cannot be traced again: a `ConcreteFunction` that the
    program holds, a function of a SavedModel, a graph of a `Session`.

    With `effects=True` the variables are compared before and after each step: which of them it
    left unchanged, and in which something is not finite then. That takes a pass over the weights in
    each step, and memory for a second copy of them; see `CallTrace`. Without it nothing of the kind
    is done; on an optimizer for which it was asked before it goes on.

    Issues a `tracer.OptimizerWarning` if its class cannot work as it is written: a method that is
    never called, or one for sparse gradients that is missing while there is an embedding.

    Raises `tracer.UnsupportedOptimizer`, a `TypeError`, for what is no optimizer that it knows.

    >>> import keras, tracer
    >>> optimizer = tracer.wrap(keras.optimizers.SGD())
    >>> isinstance(optimizer, keras.optimizers.SGD)
    True
    """
    from tracer.backends.optax import updates
    from tracer.core import registry
    from tracer.hooks import wrapping
    from tracer.hooks.lines import line_of_caller

    if updates.is_transformation(optimizer):
        from tracer.hooks import recording

        return recording.wrap_transformation(optimizer, retrace=retrace, effects=effects)
    line = line_of_caller(optimizer)
    known = registry.recorder_of(optimizer)
    recorder = wrapping.hold(optimizer, known, line, retrace=retrace, effects=effects)
    if known is None and (text := _defects(recorder)):
        warnings.warn(text, OptimizerWarning, stacklevel=2)
    return optimizer


def _defects(recorder: "Recorder") -> str:
    """What the findings say of classes that cannot work, before anything has run."""
    from tracer.evidence.inspection import FAILING, may_fail

    if not may_fail(recorder):
        return ""
    try:
        from tracer.findings.run_rules import findings

        defects = [each for each in findings(recorder.reader.trace()) if each.code in FAILING]
    except Exception as error:
        recorder.fault(error)
        return ""
    return " ".join(f"{each.text} {each.advice}" for each in defects)


def trace_of(optimizer: object) -> CallTrace:
    """The trace of a wrapped optimizer so far, frozen; training may go on.

    It holds all the steps that were complete, of the outermost optimizer and those nested in it.
    Raises `ValueError` if the optimizer was never wrapped.
    """
    from tracer.hooks import wrapping

    return _call_trace(wrapping.trace_of(optimizer))


@contextmanager
def record(*, effects: bool = False) -> Iterator[Recording]:
    """Trace every optimizer that is used in the block; yields a `Recording`.

    When the block ends, what the program did not wrap is unwrapped. What ran before the
    block does not count: steps are numbered from 1. Functions that were traced to graphs before,
    with an optimizer that was not wrapped, are traced again as by `wrap`. With `effects=True` the
    variables are compared before and after each step of the block, as by `wrap`.

    >>> import tensorflow as tf, tracer
    >>> weight = tf.Variable([1.0])
    >>> with tracer.record() as recording:
    ...     optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    ...     optimizer.apply_gradients([(tf.ones(1), weight)])
    >>> recording.trace().updates()
    1
    """
    with recording_aloud(None, effects=effects) as recorded:
        yield recorded


@contextmanager
def recording_aloud(
    say: Callable[[str], None] | None, *, effects: bool = False
) -> Iterator[Recording]:
    """As `record`; what the class of an optimizer shows is said when it is made, once each."""
    from tracer.hooks import recording

    said: set[str] = set()

    def attached(recorder: "Recorder") -> None:
        text = _defects(recorder)
        if say is not None and text and text not in said:
            said.add(text)
            say(text)

    with recording.record(attached if say is not None else None, effects=effects) as counted:
        yield Recording(counted)


@contextmanager
def recording_of(*optimizers: object, effects: bool = False) -> Iterator[Recording]:
    """Trace these optimizers only, for the block; `Recording.counted` takes others.

    If `effects`, the variables are compared before and after each step of the block.

    Raises `tracer.UnsupportedOptimizer` for what is none.
    """
    from tracer.hooks import recording

    with recording.recording_of(*optimizers, effects=effects) as counted:
        yield Recording(counted)


def load(path: str | Path) -> CallTrace:
    """Read the trace file at `path`, as written by `CallTrace.save`, or a folder of such files.

    A folder is a run: its `*.json` files are its workers' traces, merged as by `tracer.merge`.

    Raises `tracer.MergeError` if the files of a folder are not of one run, and
    `tracer.TraceFileError` if there is none, or if it is damaged, of another program, of a
    newer `tracer`, or larger than a trace file may be (1 GB).

    >>> load("no/such/file.json")
    Traceback (most recent call last):
    tracer.errors.TraceFileError: no/such/file.json: cannot be read: No such file or directory
    """
    from tracer.model import tracefile

    return _call_trace(tracefile.load(path))


def merge(traces: Iterable[Trace]) -> CallTrace:
    """The traces of one run's workers as one trace, whose replicas are (worker, replica).

    Each worker writes its own trace; they belong together if they have the same optimizers and the
    same variables. A worker of the cluster that has no trace makes the result incomplete.
    Excerpts of the same steps, replica, variable or method are merged to such an excerpt.

    Raises `tracer.MergeError`, a `ValueError`, for no traces at all, for two of one worker, and for
    traces of different runs or of different parts of a run; it names the difference.
    """
    from tracer.model import merge

    return _call_trace(merge.merge(traces))


def report(optimizer_or_trace: object, by: "By | None" = None, file: TextIO | None = None) -> None:
    """Print what an optimizer did: the answer first, then the counts.

    `optimizer_or_trace` is a wrapped optimizer or a `CallTrace`. `by` picks one table:
    `"variable"`, `"step"`, `"replica"`, `"worker"` or `"method"`; or a tree, `"caller"` or
    `"layer"`. Without it, all tables that say something are printed.
    `file` is a text stream, standard output if not given; colours are used on a terminal only.

    Raises `ValueError` for an optimizer that was never wrapped.
    """
    from tracer.reporters import formats

    given = optimizer_or_trace
    formats.print_report(given if isinstance(given, Trace) else trace_of(given), by=by, file=file)


def _call_trace(trace: Trace) -> CallTrace:
    return CallTrace(trace.data, trace.objects._replace(name_of=name_of))


for _function in (wrap, trace_of):
    vars(_function)["autograph_info__"] = None  # AutoGraph calls what has this as it is
