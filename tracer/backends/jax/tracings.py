"""Which functions were traced to programs, for what arguments, and how much of them ran.

Python knows nothing of a jitted function that JAX has a program for. But where a step is traced,
the trace of JAX knows the function, and what each of its arguments is. A tracing is that of the
outermost function, as far as JAX says which that is: from 0.7 on.
"""

import time
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary, ref

from tracer.backends.jax import compat
from tracer.backends.jax.programs import Program
from tracer.core import backend
from tracer.core.figures import Cause, Event, Figures, Key, TotalOf, Tracing

_EVENTS = 1000
"""How many tracings are kept as events, the first ones."""
_FEW = 3

Leaves = dict[str, str]
"""The arrays that a function is traced for, by the names of the arguments that they are in."""


class _Tracing(Tracing):
    """One function that is traced, with the blocks in it."""

    def __init__(self, function: str, leaves: Leaves, after: int) -> None:
        super().__init__(function, signature_of(leaves), after)
        self.programs: list[Program] = []
        self._steps: WeakKeyDictionary[Any, list[_Handed]] = WeakKeyDictionary()

    def add_step(
        self, trace: Any, variables: frozenset[int | None], gradient: Any, *, of_models: bool
    ) -> None:
        """A step method was called in `trace`: a branch of a condition has one of its own.

        `of_models` if a step has all variables of a model, so that one with others has another.
        """
        handed = _Handed(variables, gradient)
        steps = self._steps.setdefault(trace, [])
        before = [each for each in steps if not of_models or each.variables & variables]
        if before:
            self.parted |= before[-1].is_parted_from(handed)
        steps.append(handed)
        self.step_calls = max(self.step_calls, len(before) + 1)

    def add_to(self, figures_of: dict[Key, Figures]) -> None:
        """Add what is known of it by now."""
        idle = not any(program.total for program in self.programs)
        steps = [each.told[0] for each in self.programs if each.work.role == "step"]
        ran = sum(steps) if steps else max(each.told[0] for each in self.programs)
        self.sum_up(figures_of, 0, idle, ran)


class _Handed:
    """What a step was handed: which variables, and their first gradient, which is not kept."""

    def __init__(self, variables: frozenset[int | None], gradient: Any) -> None:
        self.variables = variables
        self.gradient = None if gradient is None else ref(gradient)

    def is_parted_from(self, other: "_Handed") -> bool:
        """Whether the other one has other variables, or the same gradient."""
        mine = None if self.gradient is None else self.gradient()
        its = None if other.gradient is None else other.gradient()
        return self.variables != other.variables or (mine is not None and mine is its)


class Tracings(backend.Tracings):
    """The tracings of one root optimizer; whoever adds holds the lock of its counters."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[str, list[Leaves]] = {}
        self._all: list[_Tracing] = []
        self._now: WeakKeyDictionary[Any, _Tracing] = WeakKeyDictionary()

    def of(self, trace: Any, path: int, after: int) -> _Tracing:
        """The tracing that `trace` is a part of; the call that caused a new one came by `path`."""
        outermost = compat.outermost(trace)
        tracing = self._now.get(outermost)
        if tracing is None:
            function, leaves = compat.function_name(outermost), compat.arguments_of(outermost)
            tracing = self._now[outermost] = _Tracing(function, leaves, after)
            self._all.append(tracing)
            if len(self.kept) < _EVENTS:
                self._keep(function, compat.function_place(outermost), leaves, path, after)
        return tracing

    def _keep(self, function: str, place: str, leaves: Leaves, path: int, after: int) -> None:
        """Keep the event that a function, which is defined at a `place`, is traced."""
        known = self._known.setdefault(place, [])
        cause, detail = _why(leaves, known)
        known.append(leaves)
        signature = signature_of(leaves)
        self.kept.append(
            Event(function, signature, 0, path, cause, detail, after, time.time(), None)
        )

    def figures(self, total_of: TotalOf) -> dict[Key, Figures]:
        """The figures now, in the order of the first tracing of each."""
        figures_of: dict[Key, Figures] = {}
        for tracing in list(self._all):
            tracing.add_to(figures_of)
        return figures_of


def signature_of(leaves: Leaves) -> str:
    """What a function was traced for; of an argument with many arrays only how much that is.

    >>> signature_of({"x": "float32[32, 4]", "train": "bool[]"})
    'x: float32[32, 4], train: bool[]'
    >>> signature_of({f"state[{n}]": "float32[2, 3]" for n in range(4)})
    'state: (4 arrays, 24 elements of float32)'
    """
    arguments: dict[str, Leaves] = {}
    for name, leaf in leaves.items():
        arguments.setdefault(name.partition("[")[0].partition(".")[0], {})[name] = leaf
    parts = []
    for name, own in arguments.items():
        if len(own) <= _FEW:
            parts += [f"{each}: {leaf}" for each, leaf in own.items()]
        else:
            kinds = "/".join(sorted({leaf.partition("[")[0] for leaf in own.values()}))
            elements = sum(map(_elements, own.values()))
            parts.append(f"{name}: ({len(own)} arrays, {elements} elements of {kinds})")
    return ", ".join(parts)


def _elements(leaf: str) -> int:
    """How many elements an array has.

    >>> _elements("float32[2, 3]")
    6
    """
    number = 1
    for size in leaf.partition("[")[2].partition("]")[0].split(", "):
        number *= int(size) if size.isdigit() else 1
    return number


def _why(leaves: Leaves, known: Iterable[Leaves]) -> tuple[Cause, str]:
    """Why a function is traced, of which there are programs for others."""
    changes = [list(_changes(each, leaves)) for each in known]
    if not changes:
        return "first", ""
    least = min(changes[::-1], key=len)
    if not least:  # another function of this code, another static argument, or it was forgotten
        return "unknown", ""
    more = f"; and {len(least) - _FEW} more" if len(least) > _FEW else ""
    return "argument", "; ".join(least[:_FEW]) + more


def _changes(old: Leaves, new: Leaves) -> Iterable[str]:
    """What two tracings of one function were not alike in.

    >>> list(_changes({"x": "float32[4]"}, {"x": "float32[3]"}))
    ['x: float32[4] -> float32[3]']
    """
    for name in dict.fromkeys([*old, *new]):
        before, after = old.get(name, "nothing"), new.get(name, "nothing")
        if before != after:
            yield f"{name}: {before} -> {after}"
