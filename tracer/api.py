"""What users call in a program: `wrap`, `trace_of`, `record` and `report`.

No framework is imported before `wrap` or `record` is called.
"""

import warnings
from typing import TYPE_CHECKING, TextIO, TypeVar

from tracer.backends.backend_list import backend_of
from tracer.core import collectors
from tracer.core.registry import PROGRAM, recorder_of
from tracer.errors import OptimizerWarning, is_mistake, suppress_faults
from tracer.evidence.collectors import COLLECTORS, evidence_on
from tracer.hooks.family import kind_to_trace
from tracer.hooks.recording import (
    Recording as Recording,
    record as record,
    recording_of as recording_of,
    report_made,
)
from tracer.hooks.wrapping import hold, trace_of as trace_of
from tracer.model.trace import Trace

__tracebackhide__ = is_mistake

if TYPE_CHECKING:
    from tracer.core.recorder import Recorder
    from tracer.reporters.columns import By


T = TypeVar("T")


collectors.shared = COLLECTORS


def wrap(optimizer: T, *, retrace: bool = True, effects: bool = False) -> T:
    """Trace every call of `optimizer` from now on; returns the same object.

    For optax it returns a new transformation of the same class, with the same `init`: train with
    the new one, because the original is not counted.

    Optimizers nested in it are traced with it. So is a loss scale around it, also one that Keras's
    `compile` makes later: the steps that the scale skips are in the trace of both. Wrapping an
    optimizer twice changes nothing. Its trace has all that is counted from the first `wrap` on: by
    blocks of `record` also after `unwrap`, otherwise until `unwrap` and after the next `wrap`.

    A `tf.function` that was traced before is traced again at its next call, so its steps are
    counted; the trace names it. Its stateful random ops restart their sequence, and it reads Python
    values (`trainable`, a float) again. With `retrace=False` it keeps its graph: its steps are not
    counted, and the trace says so. The same holds for functions that cannot be traced again: a
    `ConcreteFunction` that the program holds, a SavedModel, a graph of a `Session`.

    With `effects=True`, each step compares the variables before and after it: which are unchanged,
    which are not finite? This takes time and a second copy of the weights in memory; see
    `Trace.count`. Wrapping again without `effects` does not end the comparison.

    Issues a `tracer.OptimizerWarning` if the class of the optimizer cannot work as written: nothing
    calls one of its methods, or it has no method for the sparse gradients of an embedding.

    Raises `tracer.UnsupportedOptimizer`, a `TypeError`, if this is not a supported optimizer.

    >>> import keras, tracer
    >>> optimizer = tracer.wrap(keras.optimizers.SGD())
    >>> isinstance(optimizer, keras.optimizers.SGD)
    True
    """
    backend = backend_of(kind_to_trace(optimizer))
    made: T = backend.to_wrap(optimizer)
    is_new = recorder_of(backend.standing_for(made)) is None
    recorder = hold(made, PROGRAM, seen=is_new, retrace=retrace, effects=effects)
    report_made(made)
    if is_new and (text := _defects(recorder)):
        warnings.warn(text, OptimizerWarning, stacklevel=2)
    return made


def _defects(recorder: "Recorder") -> str:
    """Texts of findings on classes that cannot work, before anything has run."""
    found = (own for each in recorder.optimizers.all for own in evidence_on(each.cls, each.kind))
    with suppress_faults():
        if any(own.what == "unreached" for own in found):
            from tracer.findings.rule import findings

            every = findings(recorder.reader.trace())
            defects = (each for each in every if each.code == "override-unreached")
            return " ".join(f"{defect.text} {defect.advice}" for defect in defects)
    return ""


def report(optimizer_or_trace: object, by: "By | None" = None, file: TextIO | None = None) -> None:
    """Print what an optimizer did: the answer first, then the counts.

    `optimizer_or_trace` is a wrapped optimizer or a `Trace`. `by` picks one table:
    `"variable"`, `"layer"`, `"step"`, `"replica"`, `"method"` or `"caller"`. Without `by`, all
    tables with content are printed, but not those by layer and caller. `file` is a text stream, by
    default standard output; only a terminal gets colours.

    Raises `ValueError` for an optimizer that was never wrapped.
    """
    from tracer.reporters import formats

    given = optimizer_or_trace
    formats.print_report(given if isinstance(given, Trace) else trace_of(given), by=by, file=file)


vars(wrap)["autograph_info__"] = None  # AutoGraph does not convert functions with this
