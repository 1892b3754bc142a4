"""Find out why TensorFlow traces a function, from the call that traces it.

`tracer.core.tracings` uses the results. Facts about TensorFlow are given with the file of
TensorFlow 2.21 that shows them.
"""

import re
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType
from typing import Any
from weakref import ref

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import polymorphic_function, tracing_compilation

from tracer.backends.tensorflow import compat
from tracer.core.tracings import Arguments, Cause, Definition

_COMPARED = 64
"""With how many of the latest earlier tracings a new one is compared."""

_DEFINE = tracing_compilation._maybe_define_function.__code__
_FIRST = polymorphic_function.Function._initialize.__code__
_CALLS = (
    polymorphic_function.Function._call.__code__,
    polymorphic_function.Function._get_concrete_function_garbage_collected.__code__,
)


class Definitions:
    """The arguments that functions are traced for, for one root optimizer."""

    def __init__(self) -> None:
        self._functions: dict[CodeType, ref[Any]] = {}
        """For each code object, the `tf.function` that was traced last."""

    def of(self, graph: Any, frames: Sequence[FrameType]) -> Definition:
        """The definition of the outermost function that `frames`, innermost first, trace."""
        name = compat.function_name(graph)
        place = next((n for n, each in reversed([*enumerate(frames)]) if each.f_code is _DEFINE), 0)
        if not place:
            return Definition(name, "", "unknown", {}, ())
        values = frames[place].f_locals
        traced_for = _arguments(values["target_func_type"]).items()  # perhaps more general
        signature = ", ".join(f"{part}: {_ADDRESS.sub('', text)}" for part, text in traced_for)
        cache = getattr(values.get("tracing_options"), "function_cache", None)
        known = [] if cache is None else list(cache.values())[-_COMPARED:]
        cause = self._cause(frames[:place], frames[place:]) or (None if known else "forgotten")
        wanted = {} if cause else _arguments(values["lookup_func_type"])
        types = (_arguments(each.function_type) for each in known)
        return Definition(name, signature, cause, wanted, types)

    def _cause(self, inside: Sequence[FrameType], around: Sequence[FrameType]) -> Cause | None:
        """The cause of a graph tracing, as far as the frames outside and inside of it show.

        One call of a function that creates variables traces it twice, first by `_initialize`
        (`eager/polymorphic_function/polymorphic_function.py`).
        """
        call = next((each.f_locals for each in around if each.f_code in _CALLS), {})
        function, first = call.get("self"), any(each.f_code is _FIRST for each in around)
        if function is None:
            return "unknown"
        if not first and "initializers" in call:
            return "variables"
        code = next(each.f_code for each in reversed(inside) if not _is_of_tensorflow(each))
        before = self._functions.get(code)
        self._functions[code] = ref(function)
        if not first:
            return None
        return "first" if before is None or before() is function else "function"


def _is_of_tensorflow(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("tensorflow.")


_ADDRESS = re.compile(" at 0x[0-9a-f]+$")


def _arguments(kind: Any) -> Arguments:
    """The arguments that a function is traced for, from its TensorFlow function type."""
    parameters = kind.parameters.items()
    return dict(
        part for name, parameter in parameters for part in _parts(name, parameter.type_constraint)
    )


def _parts(name: str, kind: Any) -> Iterator[tuple[str, str]]:
    """The parts of an argument's trace type, with their texts.

    The types are those of `core/function/trace_type/default_types.py`, and `tf.TypeSpec`.
    """
    kind = getattr(kind, _SAME_AS.get(type(kind).__name__, ""), kind)
    inner: dict[Any, Any] = {}
    if type(kind).__name__ == "Tuple":
        inner = dict(enumerate(kind.components))
    elif type(kind).__name__ == "Dict":
        inner = kind.mapping
    else:
        yield name, _shown(kind)
    for key, part in inner.items():
        yield from _parts(f"{name}[{key!r}]", part)


_SAME_AS = {
    "List": "components_tuple",
    "NamedTuple": "attributes",
    "Attrs": "named_attributes",
}
"""Trace types that wrap another type, and the attribute that holds it."""


def _shown(kind: Any) -> str:
    """A part of an argument, as far as TensorFlow distinguishes graphs by it."""
    name = type(kind).__name__.removesuffix("Spec")
    if name == "Literal":
        text = repr(kind.value)
        return text if len(text) <= 40 else text[:39] + "…"
    if name == "Weakref":
        value = kind._ref()
        return f"{type(value).__name__} at {id(value):#x}"
    element = getattr(kind, "_element_spec", None)
    if element is not None:  # a dataset or its iterator
        return f"{name}({', '.join(map(_shown, tf.nest.flatten(element)))})"
    shape: Any = getattr(kind, "shape", None)
    known = shape is not None and shape.rank is not None
    sizes = ["?" if size is None else str(size) for size in shape] if known else ["..."]
    dtype = getattr(getattr(kind, "dtype", None), "name", "")
    text = f"{dtype}[{', '.join(sizes)}]"
    return text if name == "Tensor" else f"{name} {text}"
