"""What TensorFlow traces a function for, by the call that does, and how long that takes.

What is done with it stands in `tracer.core.tracings`. The facts that it rests on are named with the
file of TensorFlow 2.21 where they can be read.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType
from typing import Any
from weakref import finalize, ref

from tensorflow.python.eager.polymorphic_function import polymorphic_function, tracing_compilation

from tracer.backends.tensorflow import compat
from tracer.core.tracings import Arguments, Cause, Definition, Leaf

_COMPARED = 64
"""With how many of the tracings before, the last ones, a new one is compared."""

_DEFINE = tracing_compilation._maybe_define_function.__code__
_FIRST = polymorphic_function.Function._initialize.__code__
_CALLS = (
    polymorphic_function.Function._call.__code__,
    polymorphic_function.Function._get_concrete_function_garbage_collected.__code__,
)


class Definitions:
    """What functions are traced for, for one root optimizer."""

    def __init__(self) -> None:
        self._functions: dict[CodeType, ref[Any]] = {}
        """For each code the `tf.function` that was traced last."""

    def of(self, graph: Any, frames: Sequence[FrameType]) -> Definition:
        """What these frames, the innermost first, trace an outermost function to `graph` for."""
        name, signature = compat.function_name(graph), compat.signature(graph)
        place = next((n for n, each in reversed([*enumerate(frames)]) if each.f_code is _DEFINE), 0)
        if not place:
            return Definition(name, signature, "unknown", {}, ())
        values = frames[place].f_locals
        cache = getattr(values.get("tracing_options"), "function_cache", None)
        known = [] if cache is None else list(cache.values())[-_COMPARED:]
        cause = self._cause(frames[:place], frames[place:]) or (None if known else "forgotten")
        wanted = {} if cause else _arguments(values["lookup_func_type"])
        types = (_arguments(each.function_type) for each in known)
        timing = _timings.get(id(frames[place]))
        return Definition(name, signature, cause, wanted, types, timing)

    def _cause(self, inside: Sequence[FrameType], around: Sequence[FrameType]) -> Cause | None:
        """Why a function is traced, as far as the frames tell that do it, and those inside.

        A function that makes variables is traced by `_initialize` and then again, in one call
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


_SAME_AS = {
    "List": "components_tuple",
    "NamedTuple": "attributes",
    "Attrs": "named_attributes",
}
"""Types that are kept apart by another one, and the attribute that it is."""


class Timing:
    """How long it takes to trace an outermost function: a cell of the counter that says so.

    TensorFlow times such tracings, and adds each to one sum (`_maybe_define_function` in
    `eager/polymorphic_function/tracing_compilation.py`): it takes a cell as a tracing begins, and
    adds the time to it as it ends, also by an error.
    """

    def __init__(self, cell: Any, by: int) -> None:
        """`by` is the `id` of the frame that traces."""
        self.began = time.time()
        """In seconds since 1970 (UTC)."""
        self.seconds = 0.0
        """How long it took, once it is over."""
        self._cell, self._by = cell, by
        _timings[by] = self

    def increase_by(self, microseconds: int) -> None:
        """It is over."""
        self.seconds = microseconds / 1e6
        _timings.pop(self._by, None)
        self._cell.increase_by(microseconds)


_timings: dict[int, Timing] = {}
"""The tracings under way, by the `id` of the frame that traces."""


class _Timings:
    """In place of the counter of the time that tracings take: each is known by itself as well."""

    def __init__(self, counter: Any) -> None:
        self.counter = counter

    def get_cell(self, *labels: str) -> Timing:
        return Timing(self.counter.get_cell(*labels), id(sys._getframe(1)))


_owners: set[int] = set()
"""The ids of those that want tracings to be timed."""


def time_tracings(owner: Any) -> None:
    """Time each tracing as long as `owner` lives; TensorFlow gets its counter back then."""
    _owners.add(id(owner))
    finalize(owner, _time_no_more, id(owner)).atexit = False
    counter = getattr(tracing_compilation, _COUNTER, None)
    if counter is not None and not isinstance(counter, _Timings):
        setattr(tracing_compilation, _COUNTER, _Timings(counter))


def _time_no_more(owner: int) -> None:
    _owners.discard(owner)
    counter = getattr(tracing_compilation, _COUNTER, None)
    if not _owners and isinstance(counter, _Timings):
        setattr(tracing_compilation, _COUNTER, counter.counter)


_COUNTER = "_graph_building_time_counter"
