"""Find out for what arguments TensorFlow traces a function, from the call that traces it.

`tracer.core.tracings` uses the results. Facts about TensorFlow are given with the file of
TensorFlow 2.21 that shows them.
"""

import re
from collections.abc import Sequence
from types import FrameType
from typing import Any

from tensorflow.python.eager.polymorphic_function import tracing_compilation

from tracer.backends.tensorflow import compat
from tracer.core.tracings import Arguments, Definition

_COMPARED = 64
"""With how many of the latest earlier tracings a new one is compared."""

_DEFINE = tracing_compilation._maybe_define_function.__code__


def definition_of(graph: Any, frames: Sequence[FrameType]) -> Definition:
    """The definition of the outermost function that `frames`, innermost first, trace."""
    name = compat.function_name(graph)
    values = next((each.f_locals for each in reversed(frames) if each.f_code is _DEFINE), None)
    if values is None:
        return Definition(name, "", {}, ())
    traced_for = _arguments(values["target_func_type"]).items()  # perhaps more general
    signature = ", ".join(f"{part}: {_ADDRESS.sub('', text)}" for part, text in traced_for)
    cache = getattr(values.get("tracing_options"), "function_cache", None)
    known = [] if cache is None else list(cache.values())[-_COMPARED:]
    types = (_arguments(each.function_type) for each in known)
    return Definition(name, signature, _arguments(values["lookup_func_type"]), types)


def _arguments(kind: Any) -> Arguments:
    """The arguments that a function is traced for, from its TensorFlow function type."""
    return {name: _shown(parameter.type_constraint) for name, parameter in kind.parameters.items()}


_ADDRESS = re.compile(" at 0x[0-9a-f]+")
_TENSOR = re.compile(r"TensorSpec\(shape=\(?(.*?),?\)?, dtype=tf\.(\w+), name=[^()]*\)")
_LONGEST = 200


def _shown(kind: Any) -> str:
    """A trace type (`core/function/trace_type/default_types.py`) or a `tf.TypeSpec` as text."""
    name, text = type(kind).__name__, repr(kind)
    if name == "Weakref":
        value = kind._ref()
        text = f"{type(value).__name__} at {id(value):#x}"
    elif name == "Literal":
        text = repr(kind.value)
    return _TENSOR.sub(r"\2[\1]", text)[:_LONGEST]
