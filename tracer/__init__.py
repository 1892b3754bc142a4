"""What does my optimizer really do? Exact counts of its calls, updates and steps.

    import tracer

    optimizer = tracer.wrap(optimizer)      # the same object, now traced
    ...                                     # train as ever
    tracer.report(optimizer)

Importing this package imports no TensorFlow; `wrap` and `trace_of` do, when they are called.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tracer.errors import (
    MergeError,
    OptimizerWarning,
    TraceFileError,
    UnknownName,
    UnsupportedOptimizer,
)

if TYPE_CHECKING:
    from tracer.api import record, report, trace_of, wrap
    from tracer.hooks.wrapping import unwrap
    from tracer.model.merge import merge
    from tracer.model.trace import Trace
    from tracer.model.tracefile import load
    from tracer.testing import (
        assert_all_updated,
        assert_calls,
        assert_executions,
        assert_never_updated,
        assert_updates,
    )

__version__ = "0.1.0"

__all__ = [
    "MergeError",
    "OptimizerWarning",
    "Trace",
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
    "Trace": "tracer.model.trace",
    "assert_all_updated": "tracer.testing",
    "assert_calls": "tracer.testing",
    "assert_executions": "tracer.testing",
    "assert_never_updated": "tracer.testing",
    "assert_updates": "tracer.testing",
    "load": "tracer.model.tracefile",
    "merge": "tracer.model.merge",
    "record": "tracer.api",
    "report": "tracer.api",
    "trace_of": "tracer.api",
    "unwrap": "tracer.hooks.wrapping",
    "wrap": "tracer.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tracer' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
