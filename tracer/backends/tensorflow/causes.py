"""Why a function was traced: the call that caused it, and what of its arguments was new.

Each tracing of an outermost function with a block in it is an event. It is noted when the first
block in it is closed, on the thread that traces; how long it took is known when it is over
(`functions.Timing`).
"""

import time
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Any, NamedTuple
from weakref import ref

from tracer.backends.tensorflow import compat
from tracer.backends.tensorflow.functions import Definition
from tracer.core.figures import Cause, Event

MOST = 1000
"""How many tracings are kept, the first ones; of all of them only the number is."""

_FEW = 3


class Events:
    """The tracings for one root optimizer; whoever calls holds the lock of its counters."""

    def __init__(self, kept: list[Event]) -> None:
        """`kept` takes the first ones."""
        self.kept = kept
        self._functions: dict[CodeType, ref[Any]] = {}

    def begin(
        self, graph: Any, replica: int, definition: Definition | None, path: int, steps: int
    ) -> Event | None:
        """A function is being traced to `graph`, after so many steps; None if too many were."""
        if len(self.kept) >= MOST:
            return None
        cause, detail = self._why(definition)
        timing = None if definition is None else definition.timing
        began = time.time() if timing is None else timing.began
        name, signature = compat.function_name(graph), compat.signature(graph)
        event = Event(name, signature, replica, path, cause, detail, steps, began, timing)
        self.kept.append(event)
        return event

    def _why(self, definition: Definition | None) -> tuple[Cause, str]:
        if definition is None or definition.function is None:
            return "unknown", ""
        if definition.made_variables:
            return "variables", ""
        code = definition.code
        known = self._functions.get(code) if code is not None else None
        if code is not None:
            self._functions[code] = ref(definition.function)
        if definition.first:
            other = known is not None and known() is not definition.function
            return ("function" if other else "first"), ""
        if not definition.known:
            return "forgotten", ""
        changes = [list(_changes(each, definition.wanted)) for each in reversed(definition.known)]
        if not all(changes):  # by its arguments it need not be traced: it is called elsewhere
            return "unknown", ""
        least = min(changes, key=len)
        more = f"; and {len(least) - _FEW} more" if len(least) > _FEW else ""
        values = all(change.value for change in least)
        text = "; ".join(f"{each.name}: {each.old} -> {each.new}" for each in least[:_FEW])
        return ("value" if values else "argument"), text + more


class _Leaf(NamedTuple):
    name: str
    text: str
    value: bool
    """Whether it is a Python value."""
    identity: int = 0
    """Of a value that is known by being itself."""


class _Change(NamedTuple):
    name: str
    old: str
    new: str
    value: bool


def _changes(old: Any, new: Any) -> Iterator[_Change]:
    """In which arguments two types of functions differ."""
    for name in dict.fromkeys([*old.parameters, *new.parameters]):
        before, after = (
            list(_leaves(name, each.parameters[name].type_constraint))
            if name in each.parameters
            else []
            for each in (old, new)
        )
        if [leaf.name for leaf in before] == [leaf.name for leaf in after]:
            for one, other in zip(before, after, strict=True):
                if one != other:
                    again = "another " if one.text == other.text else ""
                    yield _Change(one.name, one.text, again + other.text, one.value and other.value)
        else:  # of another structure
            yield _Change(name, _structure(before), _structure(after), False)


def _structure(leaves: Sequence[_Leaf]) -> str:
    """What an argument consists of; one that consists of nothing is not there."""
    if len(leaves) < 2:
        return leaves[0].text if leaves else "nothing"
    more = ", ..." if len(leaves) > _FEW else ""
    return f"({', '.join(leaf.text for leaf in leaves[:_FEW])}{more})"


def _leaves(name: str, kind: Any) -> Iterator[_Leaf]:
    """The parts of an argument that TensorFlow looks at, as it has them for a function's type
    (`core/function/trace_type/default_types.py`).
    """
    of = type(kind).__name__
    if of == "Literal":
        yield _Leaf(name, compat.shown(kind.value), True)
    elif of == "Tuple":
        for index, each in enumerate(kind.components):
            yield from _leaves(f"{name}[{index}]", each)
    elif of == "List":
        yield from _leaves(name, kind.components_tuple)
    elif of == "NamedTuple":
        for field, each in zip(kind.attribute_names, kind.attributes.components, strict=True):
            yield from _leaves(f"{name}.{field}", each)
    elif of == "Attrs":
        yield from _leaves(name, kind.named_attributes)
    elif of == "Dict":
        for key, each in kind.mapping.items():
            yield from _leaves(f"{name}[{key!r}]", each)
    elif of == "Weakref":
        value = kind._ref()
        yield _Leaf(name, type(value).__name__, True, id(value))
    else:
        text = compat.shown(kind)
        prefix = f"{kind.name}: " if getattr(kind, "name", None) else ""
        yield _Leaf(name, text.removeprefix(prefix), False)
