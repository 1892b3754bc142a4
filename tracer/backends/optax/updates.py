"""`wrap` for optax: copy a transformation, with an `update` that records its calls.

A transformation is a tuple of two functions, not an object whose class could be replaced. So `wrap`
returns another tuple of the same class, with the same `init`; calls of the original are not
counted. The new `update` calls the original, returns its results, and represents the transformation
where optimizers are known by identity. Like a function, it is its own copy; its pickle contains
only the original `update`.

An update is what `update` returned for one leaf. Whether the program adds it to the parameters
(`apply_updates`) is not seen.
"""

import copy
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from tracer.backends.optax.inside import holds, label, settings_in, under_way
from tracer.core.optimizers import NOT_SEEN, Binding, Made, made_here
from tracer.core.registry import PROGRAM, bindings

if TYPE_CHECKING:
    import optax

first_call: "Callable[[TracedUpdate], None] | None" = None
"""Starts counting what was made in a recording at its first call; None outside recordings."""


_all: "WeakSet[TracedUpdate]" = WeakSet()
unused: "dict[int, TracedUpdate]" = {}
"""By `id`, what was made in this recording and nothing has called, without parts of others."""


class TracedUpdate:
    """The `update` of a transformation, whose calls are counted while it is wrapped."""

    def __init__(
        self, given: "optax.GradientTransformation", maker: str = "", made: Made = NOT_SEEN
    ) -> None:
        """`given` is the transformation, `made` the line of the program that made it.

        One that has the name of a `maker` was made in a recording, and not wrapped: it is counted
        only in calls outside other transformations.
        """
        functools.update_wrapper(self, given.update)
        self.given = given
        self.original: optax.TransformUpdateFn = given.update
        self.maker, self.made = maker, made
        self.sought: object = given if _is_multi_steps(given) else given.update
        """The object by which functions that use it are found."""
        self.was_called = False
        """Whether it was called while nothing counted it."""
        _all.add(self)

    def __call__(self, *args: object, **kwargs: object) -> object:
        unused.pop(id(self), None)
        binding = bindings.get(id(self))
        if self.maker and not (binding is not None and PROGRAM in binding.holders):
            binding = None if under_way.depth else self._to_count(binding)
        under_way.depth += 1
        names, under_way.names = under_way.names, set()
        try:
            if binding is None or binding.observer is None or binding.recorder.broken:
                return self.original(*args, **kwargs)
            backend: Any = binding.recorder.backend
            with backend.new_step(self, binding, args, kwargs) as step:
                step.result = self.original(*args, **kwargs)
                return step.result
        finally:
            under_way.depth -= 1
            under_way.names |= names
            if not under_way.depth:
                under_way.clear()

    def _to_count(self, binding: Binding | None) -> Binding | None:
        """The binding that counts an outermost call; None if it is not counted.

        If the program wrapped a part of the transformation, only that part is counted.
        """
        if binding is None and first_call is not None and not holds(self.original, _is_wrapped):
            first_call(self)
            binding = bindings.get(id(self))
        self.was_called |= binding is None
        return binding

    def __copy__(self) -> "TracedUpdate":
        return self

    def __deepcopy__(self, memo: object) -> "TracedUpdate":
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return copy.copy, (self.original,)  # it returns functions unchanged


def _is_wrapped(each: object) -> bool:
    """True for an `update` that the program wrapped."""
    binding = bindings.get(id(each)) if type(each) is TracedUpdate else None
    return binding is not None and PROGRAM in binding.holders


def _is_multi_steps(given: object) -> bool:
    return any(
        base.__name__ == "MultiSteps" and base.__module__.partition(".")[0] == "optax"
        for base in type(given).__mro__
    )


def standing_for(given: Any) -> Any:
    """The registry key of an optimizer: for a traced transformation, its `update`."""
    update = getattr(given, "update", None)
    return update if type(update) is TracedUpdate else given


def traced(given: Any) -> Any:
    """A copy of a transformation that can be counted; one that can be is returned as it is."""
    if standing_for(given) is not given:
        return given
    update = TracedUpdate(given, made=made_here(given))
    if not _is_multi_steps(given):
        return given._replace(update=update)
    made = copy.copy(given)
    made.update = update
    return made


def introduce(traced: Binding) -> None:
    """Complete what is known of an `update` that is counted for the first time."""
    update: Any = traced.optimizer()
    name = update.maker or label(update.given)
    traced.name, traced.class_name, traced.made = lambda: name, f"optax.{name}", update.made
    traced.settings.update(settings_in(update.given))


def living() -> list[TracedUpdate]:
    """The updates that are counted now, and those made in recordings that were called."""
    found = [(each, bindings.get(id(each))) for each in list(_all)]
    return [
        each
        for each, binding in found
        if (binding is not None and (each.maker or binding.observer is not None))
        or (each.was_called and not holds(each.original, _is_wrapped))
    ]
