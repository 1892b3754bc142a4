"""`wrap` for optax: a copy of a transformation whose `update` notes its calls.

A transformation is a tuple of two functions, and no object whose class could be exchanged.
So `wrap` gives another one of the same class, with the same `init`; who uses the first one is not
counted. The new `update` calls the first, passes on what it returns, and stands for the
transformation where an optimizer is known by its identity. Copies of it are itself, as those of a
function are; a pickle of it is one of the first `update`.

An update is what `update` returned for one leaf: what is computed. Whether the program adds it to
the parameters (`apply_updates`) is not seen.
"""

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn
from weakref import WeakSet, ref

from tracer.backends.optax.inside import holds, label, settings_in, under_way
from tracer.core.interrupts import suppress_faults
from tracer.core.optimizers import TracedOptimizer
from tracer.core.recorder import Recorder
from tracer.core.registry import Binding, bindings
from tracer.errors import UnsupportedOptimizer, is_mistake
from tracer.kinds import KINDS, OPTAX, kind_of

__tracebackhide__ = is_mistake

KIND = next(each for each in KINDS if each.name == OPTAX)


first_call: "Callable[[TracedUpdate], None] | None" = None
"""Has what a maker made counted from its first call on; None while nothing is recorded."""


line_of_caller: Callable[[object], str] = lambda made: ""  # noqa: E731
"""The line of the program that is running."""


_PREPARING = {
    *("adaptive_grad_clip", "centralize", "clip", "clip_by_block_rms", "clip_by_global_norm"),
    *("normalize_by_update_norm", "zero_nans"),
}
"""The makers of what returns gradients that are still gradients."""


_all: "WeakSet[TracedUpdate]" = WeakSet()


class TracedUpdate:
    """The `update` of a transformation, which is counted as long as it is wrapped."""

    def __init__(self, given: Any, maker: str = "", made: str = "") -> None:
        """`given` is the transformation, `made` the line of the program that made it.

        What was seen as a `maker` made it is counted where it is called by no other one.
        """
        functools.update_wrapper(self, given.update)
        self.given = given
        self.original: Callable[..., Any] = given.update
        self.maker, self.made = maker, made
        self.sought: Any = given if _is_multi_steps(given) else given.update
        """By what functions are found that use it."""
        self.limit: int | None = None
        """After how many steps in a row an `apply_if_finite` in it leaves out none."""
        self.was_called = False
        """Whether it was called while nobody counted it."""
        self.decays: Sequence[Any] = ()
        """The decays in it with their masks, until its first step has ended."""
        self.beginnings: Any = None
        """When `init` made states again; None if that was not seen."""
        _all.add(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        binding = bindings.get(id(self))
        if self.maker and not (binding is not None and binding.by_program):
            binding = None if under_way.depth else self._to_count(binding)
        under_way.depth += 1
        try:
            if binding is None or binding.observer is None or binding.recorder.broken:
                made = self.original(*args, **kwargs)
                if under_way.depth > 1 and self.maker in _PREPARING:
                    under_way.prepared += ((args[:1], made[0]),)
                return made
            backend: Any = binding.recorder.backend
            with backend.new_step(self, binding, args, kwargs) as step:
                step.result = self.original(*args, **kwargs)
                return step.result
        finally:
            under_way.depth -= 1
            if not under_way.depth:
                under_way.prepared = ()

    def _to_count(self, binding: Binding | None) -> Binding | None:
        """What counts a call that no other one makes; None if nothing is to be counted.

        Where a part of it was wrapped by the program, that part is counted alone.
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
        return copy.copy, (self.original,)  # which gives back a function as it is


class TracedInit:
    """The `init` of what a maker made, which notes when a state is made again."""

    def __init__(self, update: TracedUpdate) -> None:
        functools.update_wrapper(self, update.given.init)
        self.update, self.original = update, update.given.init

    def __call__(self, params: Any, *args: Any, **kwargs: Any) -> Any:
        outermost = not under_way.depth
        under_way.depth += 1
        try:
            state = self.original(params, *args, **kwargs)
        finally:
            under_way.depth -= 1
        if outermost and first_call is not None:
            with suppress_faults():
                self._note(params, state)
        return state

    def _note(self, params: Any, state: Any) -> None:
        from tracer.backends.optax.states import Beginnings  # which imports JAX

        update, binding = self.update, bindings.get(id(self.update))
        update.beginnings = update.beginnings or Beginnings()
        if binding is not None:
            binding.recorder.blocks.wait()
        steps = 0 if binding is None else binding.recorder.step_count()
        update.beginnings.add(params, state, steps, line_of_caller(self))

    __copy__, __deepcopy__ = TracedUpdate.__copy__, TracedUpdate.__deepcopy__

    def __reduce__(self) -> Any:
        return copy.copy, (self.original,)


def _is_wrapped(each: Any) -> bool:
    """Whether it is an `update` that the program wrapped."""
    binding = bindings.get(id(each)) if type(each) is TracedUpdate else None
    return binding is not None and binding.by_program


def is_transformation(given: Any) -> bool:
    """Whether it is one of optax: a tuple of `init` and `update`, or a `MultiSteps`."""
    kind = kind_of(type(given))
    return (kind is not None and kind.name == OPTAX) or _is_multi_steps(given)


def _is_multi_steps(given: Any) -> bool:
    return any(
        base.__name__ == "MultiSteps" and base.__module__.partition(".")[0] == "optax"
        for base in type(given).__mro__
    )


def standing_for(given: Any) -> Any:
    """What stands for an optimizer in the registry: the `update` of a traced transformation."""
    if isinstance(given, tuple):
        update = getattr(given, "update", None)
    else:
        update = getattr(given, "__dict__", {}).get("update")
    return update if type(update) is TracedUpdate else given


def traced(given: Any, line: str) -> tuple[Any, TracedUpdate]:
    """A transformation as `given` that can be counted, and its `update`.

    `line` is that of the program which wraps it.
    """
    update = TracedUpdate(given, made=line)
    if not _is_multi_steps(given):
        return given._replace(update=update), update
    made = copy.copy(given)
    made.update = update
    return made, update


def bind(update: TracedUpdate, recorder: Recorder) -> None:
    """Have the recorder count an `update` that has none yet."""
    name = update.maker or label(update.given)
    known = TracedOptimizer(ref(update), lambda: name, f"optax.{name}", KIND, (), update.made)
    index = recorder.optimizers.add(known)
    bindings[id(update)] = Binding(update, recorder, index, _nothing_nested)
    from tracer.backends.optax.decays import decays_in  # which imports JAX

    with suppress_faults():
        update.decays = tuple(decays_in(update.original))
    settings, update.limit = settings_in(update.given)
    known.settings.update(settings)


def go_on(update: TracedUpdate, *, is_new: bool = False, retrace: bool = True) -> Recorder:
    """Count the calls of `update` from now on; no function was traced with one that `is_new`."""
    binding = bindings[id(update)]
    if binding.observer is None:
        if is_new:
            binding.recorder.optimizers.stale.begin(binding.index)
        else:
            binding.recorder.optimizers.begin(binding.index, retrace)
        binding.observer = "update"  # which sees its steps itself
    return binding.recorder


def living() -> list[TracedUpdate]:
    """Those that are counted now, and those that a maker made and the program has called."""
    found = [(each, bindings.get(id(each))) for each in list(_all)]
    return [
        each
        for each, binding in found
        if (binding is not None and (each.maker or binding.observer is not None))
        or (each.was_called and not holds(each.original, _is_wrapped))
    ]


def refuse(given: Any) -> NoReturn:
    """Raise for a transformation that is not traced where it cannot be exchanged for one."""
    raise UnsupportedOptimizer(
        f"this transformation of optax ({label(given)}) is not traced: give what tracer.wrap(tx) "
        "gave back, and train with that"
    )


def _nothing_nested(optimizer: Any, binding: Binding) -> Binding:
    binding.settled = True
    return binding
