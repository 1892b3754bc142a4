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
import sys
from collections.abc import Callable
from typing import Any, NoReturn
from weakref import WeakSet, ref

from tracer.backends.optax.inside import held_in, holds, label, settings_in, under_way
from tracer.core.calls import frames_from
from tracer.core.optimizers import NOT_SEEN, Made, TracedOptimizer
from tracer.core.recorder import Recorder
from tracer.core.registry import Binding, bindings
from tracer.errors import UnsupportedOptimizer, is_mistake
from tracer.kinds import KINDS, OPTAX, kind_of

__tracebackhide__ = is_mistake

KIND = next(each for each in KINDS if each.name == OPTAX)


first_call: "Callable[[TracedUpdate], None] | None" = None
"""Starts counting a maker's transformation at its first call; None outside recordings."""


line_of_caller: Callable[[object], str] = lambda made: ""  # noqa: E731
"""The line of the program that is running."""
made_here: Callable[[object], Made] = lambda made: NOT_SEEN  # noqa: E731
"""The same line, which makes a transformation now."""


_all: "WeakSet[TracedUpdate]" = WeakSet()
unused: "dict[int, TracedUpdate]" = {}
"""By `id`, what makers made in this recording and nothing has called, without parts of others."""


class TracedUpdate:
    """The `update` of a transformation, whose calls are counted while it is wrapped."""

    def __init__(self, given: Any, maker: str = "", made: Made = NOT_SEEN) -> None:
        """`given` is the transformation, `made` the line of the program that made it.

        A transformation by a `maker` is counted only in calls outside other transformations.
        """
        functools.update_wrapper(self, given.update)
        self.given = given
        self.original: Callable[..., Any] = given.update
        self.maker, self.made = maker, made
        self.sought: Any = given if _is_multi_steps(given) else given.update
        """The object by which functions that use it are found."""
        self.limit: int | None = None
        """After how many skipped steps in a row an `apply_if_finite` inside it stops skipping."""
        self.was_called = False
        """Whether it was called while nothing counted it."""
        _all.add(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        unused.pop(id(self), None)
        binding = bindings.get(id(self))
        if self.maker and not (binding is not None and binding.by_program):
            binding = None if under_way.depth else self._to_count(binding)
        under_way.depth += 1
        try:
            if binding is None or binding.observer is None or binding.recorder.broken:
                return self._marking(*args, **kwargs)
            backend: Any = binding.recorder.backend
            with backend.new_step(self, binding, args, kwargs) as step:
                step.result = self._marking(*args, **kwargs)
                return step.result
        finally:
            under_way.depth -= 1
            if not under_way.depth:
                under_way.zeros, under_way.masks = {}, {}

    @functools.cached_property
    def _marking(self) -> Callable[..., Any]:
        """The original, or a copy of it that notes which leaves it sets to zero."""
        from tracer.backends.optax.outcome import marking  # which imports JAX

        return marking(self.original)  # type: ignore[no-any-return]

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

    def __deepcopy__(self, memo: Any) -> "TracedUpdate":
        return self

    def __reduce__(self) -> Any:
        return copy.copy, (self.original,)  # it returns functions unchanged


def note_made(update: TracedUpdate) -> None:
    """Note what a maker made for the program: not for optax, and what is inside it no more."""
    for part in held_in(update.original):
        unused.pop(id(part), None)
    names = (str(frame.f_globals.get("__name__")) for frame in frames_from(sys._getframe(1)))
    if first_call is not None and not any(name.startswith("optax.") for name in names):
        unused[id(update)] = update


def _is_wrapped(each: Any) -> bool:
    """True for an `update` that the program wrapped."""
    binding = bindings.get(id(each)) if type(each) is TracedUpdate else None
    return binding is not None and binding.by_program


def is_transformation(given: Any) -> bool:
    """True for a transformation of optax: a tuple of `init` and `update`, or a `MultiSteps`."""
    kind = kind_of(type(given))
    return (kind is not None and kind.name == OPTAX) or _is_multi_steps(given)


def _is_multi_steps(given: Any) -> bool:
    return any(
        base.__name__ == "MultiSteps" and base.__module__.partition(".")[0] == "optax"
        for base in type(given).__mro__
    )


def standing_for(given: Any) -> Any:
    """The registry key of an optimizer: for a traced transformation, its `update`."""
    if isinstance(given, tuple):
        update = getattr(given, "update", None)
    else:
        update = getattr(given, "__dict__", {}).get("update")
    return update if type(update) is TracedUpdate else given


def traced(given: Any, made_by: Made) -> tuple[Any, TracedUpdate]:
    """A copy of a transformation that can be counted, and its `update`.

    `made_by` is the line of the program that wraps it.
    """
    update = TracedUpdate(given, made=made_by)
    if not _is_multi_steps(given):
        return given._replace(update=update), update
    made = copy.copy(given)
    made.update = update
    return made, update


def bind(update: TracedUpdate, recorder: Recorder) -> None:
    """Bind an `update` to the recorder that counts it."""
    name = update.maker or label(update.given)
    known = TracedOptimizer(ref(update), lambda: name, f"optax.{name}", KIND, (), update.made)
    index = recorder.optimizers.add(known)
    bindings[id(update)] = Binding(update, recorder, index, _nothing_nested)
    settings, update.limit = settings_in(update.given)
    known.settings.update(settings)


def go_on(update: TracedUpdate, *, is_new: bool = False, retrace: bool = True) -> Recorder:
    """Count the calls of `update` from now on; `is_new` if no function was traced with it."""
    binding = bindings[id(update)]
    if binding.observer is None:
        if is_new:
            binding.recorder.optimizers.stale.begin(binding.index)
        else:
            binding.recorder.optimizers.begin(binding.index, retrace)
        binding.observer = "update"  # it sees its own steps
    return binding.recorder


def living() -> list[TracedUpdate]:
    """The updates that are counted now, and those by makers that the program has called."""
    found = [(each, bindings.get(id(each))) for each in list(_all)]
    return [
        each
        for each, binding in found
        if (binding is not None and (each.maker or binding.observer is not None))
        or (each.was_called and not holds(each.original, _is_wrapped))
    ]


def refuse(given: Any) -> NoReturn:
    """Raise for an untraced transformation, in a place where it cannot be replaced."""
    raise UnsupportedOptimizer(
        f"this optax transformation ({label(given)}) is not traced: train with the result of "
        "tracer.wrap(tx)"
    )


def _nothing_nested(optimizer: Any, binding: Binding) -> Binding:
    binding.settled = True
    return binding
