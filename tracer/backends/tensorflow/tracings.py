"""What TensorFlow traces a function for, by the call that does: see `tracer.core.tracings`."""

from collections.abc import Iterator, Sequence
from types import CodeType, FrameType
from typing import Any
from weakref import ref

from tracer.backends.tensorflow import compat, functions
from tracer.core.tracings import Arguments, Cause, Definition, Leaf


class Definitions:
    """What functions are traced for, for one root optimizer."""

    def __init__(self) -> None:
        self._functions: dict[CodeType, ref[Any]] = {}
        """For each code the `tf.function` that was traced last."""

    def of(self, graph: Any, frames: Sequence[FrameType]) -> Definition:
        """What these frames, the innermost first, trace an outermost function to `graph` for."""
        call = functions.tracing_call(frames)
        name, signature = compat.function_name(graph), compat.signature(graph)
        cause = self._cause(call)
        if call is None or cause is not None:
            timing = None if call is None else call.timing
            return Definition(name, signature, cause, {}, (), timing)
        known = [_arguments(each) for each in call.known]
        return Definition(name, signature, None, _arguments(call.wanted), known, call.timing)

    def _cause(self, call: functions.TracingCall | None) -> Cause | None:
        if call is None or call.function is None:
            return "unknown"
        if call.made_variables:
            return "variables"
        before = self._functions.get(call.code) if call.code is not None else None
        if call.code is not None:
            self._functions[call.code] = ref(call.function)
        if call.first:
            other = before is not None and before() is not call.function
            return "function" if other else "first"
        return None if call.known else "forgotten"


def _arguments(kind: Any) -> Arguments:
    """What a function is traced for, by the type that TensorFlow has of it."""
    return {
        name: dict(_leaves(name, parameter.type_constraint))
        for name, parameter in kind.parameters.items()
    }


def _leaves(name: str, kind: Any) -> Iterator[tuple[str, Leaf]]:
    """The parts of an argument that TensorFlow looks at, as it has them for a function's type
    (`core/function/trace_type/default_types.py`).
    """
    of = type(kind).__name__
    inner: Any = ()
    if of in _SAME_AS:
        inner = [(name, getattr(kind, _SAME_AS[of]))]
    elif of == "Tuple":
        inner = [(f"{name}[{index}]", each) for index, each in enumerate(kind.components)]
    elif of == "NamedTuple":
        names = (f"{name}.{field}" for field in kind.attribute_names)
        inner = zip(names, kind.attributes.components, strict=True)
    elif of == "Dict":
        inner = [(f"{name}[{key!r}]", each) for key, each in kind.mapping.items()]
    elif of == "Literal":
        yield name, Leaf(compat.shown(kind.value), True)
    elif of == "Weakref":
        value = kind._ref()
        yield name, Leaf(type(value).__name__, True, id(value))
    else:
        prefix = f"{kind.name}: " if getattr(kind, "name", None) else ""
        yield name, Leaf(compat.shown(kind).removeprefix(prefix))
    for each, part in inner:
        yield from _leaves(each, part)


_SAME_AS = {"List": "components_tuple", "Attrs": "named_attributes"}
"""Types that are told apart by another one, and the attribute that it is."""
