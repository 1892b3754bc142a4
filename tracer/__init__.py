"""What does my optimizer really do? Exact counts of its calls, updates and steps.

    import tracer

    optimizer = tracer.wrap(optimizer)      # the same object, now traced
    ...                                     # train as ever
    tracer.report(optimizer)

Importing this package imports no TensorFlow; `wrap` and `trace_of` do, when they are called.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, TextIO

from tracer.errors import (
    MergeError,
    OptimizerWarning,
    TraceFileError,
    UnknownName,
    UnsupportedOptimizer,
)

if TYPE_CHECKING:
    from tracer.calltrace import CallTrace
    from tracer.merging import merge
    from tracer.recording import record
    from tracer.reporters.tables import By
    from tracer.storage import load
    from tracer.testing import (
        assert_all_updated,
        assert_calls,
        assert_executions,
        assert_never_updated,
        assert_updates,
    )
    from tracer.wrapping import trace_of, unwrap, wrap

__version__ = "0.1.0"

__all__ = [
    "CallTrace",
    "MergeError",
    "OptimizerWarning",
    "TraceFileError",
    "UnknownName",
    "UnsupportedOptimizer",
    "assert_all_updated",
    "assert_calls",
    "assert_executions",
    "assert_never_updated",
    "assert_updates",
    "load",
    "merge",
    "record",
    "report",
    "trace_of",
    "unwrap",
    "wrap",
]

_HOMES = {
    "CallTrace": "tracer.calltrace",
    "assert_all_updated": "tracer.testing",
    "assert_calls": "tracer.testing",
    "assert_executions": "tracer.testing",
    "assert_never_updated": "tracer.testing",
    "assert_updates": "tracer.testing",
    "load": "tracer.storage",
    "load_ipython_extension": "tracer.notebook",  # what `%load_ext tracer` looks for
    "merge": "tracer.merging",
    "record": "tracer.recording",
    "trace_of": "tracer.wrapping",
    "unload_ipython_extension": "tracer.notebook",
    "unwrap": "tracer.wrapping",
    "wrap": "tracer.wrapping",
}


def report(optimizer_or_trace: object, by: "By | None" = None, file: TextIO | None = None) -> None:
    """Print what an optimizer did: the answer first, then the counts.

    `optimizer_or_trace` is a wrapped optimizer or a `CallTrace`. `by` picks one table:
    `"variable"`, `"step"`, `"replica"`, `"worker"` or `"method"`; without it, all that say
    something are printed.
    `file` is a text stream, standard output if not given; colours are used on a terminal only.

    Raises `ValueError` for an optimizer that was never wrapped.
    """
    from tracer.calltrace import CallTrace
    from tracer.reporters import console

    trace = optimizer_or_trace
    if not isinstance(trace, CallTrace):
        from tracer.wrapping import trace_of

        trace = trace_of(optimizer_or_trace)
    console.report(trace, by=by, file=file)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tracer' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
