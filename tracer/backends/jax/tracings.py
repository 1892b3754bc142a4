"""Find out what arguments JAX traces a program for: see `tracer.core.tracings`.

Python does not see calls of a jitted function that has a program. But while a step is traced, JAX's
trace has the function and each of its arguments. A graph tracing concerns the outermost function,
which JAX tells from 0.7 on.
"""

import math
from typing import Any

from tracer.backends.jax import compat
from tracer.core.tracings import MAX_NAMES, Arguments, Definition
from tracer.model.words import some

_COMPARED = 64
"""With how many of the earliest tracings a new one is compared."""

Leaves = dict[str, str]
"""The dtypes and shapes of the arrays that a function is traced for, by name."""


def definition_of(trace: Any, earlier: dict[str, list[Arguments]]) -> Definition:
    """The definition of the function that `trace`, an outermost one, traces.

    `earlier` has the arguments of earlier tracings by function, and gets these.
    """
    leaves, place = compat.arguments_of(trace), compat.function_place(trace)
    known = earlier.setdefault(place, [])
    signature, before = signature_of(leaves), tuple(known)
    if len(known) < _COMPARED and leaves not in known:  # each step may trace it again
        known.append(leaves)
    return Definition(compat.function_name(trace), signature, leaves, before)


def signature_of(leaves: Leaves) -> str:
    """The last arrays that a function was traced for, after the number of the others.

    >>> signature_of({"x": "float32[32, 4]", "train": "bool[]"})
    'x: float32[32, 4], train: bool[]'
    >>> signature_of({**{f"state[{n}]": "float32[2, 3]" for n in range(4)}, "x": "float32[32]"})
    '2 arrays (12 elements), state[2]: float32[2, 3], state[3]: float32[2, 3], x: float32[32]'
    """
    parts = [f"{name}: {leaf}" for name, leaf in leaves.items()][-MAX_NAMES:]
    others = [*leaves.values()][:-MAX_NAMES]
    if others:
        parts.insert(0, f"{some(len(others), 'array')} ({sum(map(_elements, others)):,} elements)")
    return ", ".join(parts)


def _elements(leaf: str) -> int:
    """The number of elements of an array.

    >>> _elements("float32[2, 3]")
    6
    """
    sizes = leaf.partition("[")[2].partition("]")[0].split(", ")
    return math.prod(int(size) for size in sizes if size.isdigit())
