"""`wrap` for optax: a copy of a transformation whose `update` notes its calls.

A transformation is a tuple of two functions, and no object of which the class could be exchanged.
So `wrap` gives another one of the same class, with the same `init`; who uses the first one is not
counted. The new `update` calls the first, passes on what it returns, and stands for the
transformation where an optimizer is known by its identity. Copies of it are itself, as those of a
function are; a pickle of it is one of the first `update`.

An update is what `update` returned for one leaf: what is computed. Whether the program adds it to
the parameters (`apply_updates`) is not seen.
"""

import copy
import functools
from collections.abc import Callable
from typing import Any, NoReturn
from weakref import ref

from tracer.backends.optax.inside import label, settings_in
from tracer.core.optimizers import TracedOptimizer
from tracer.core.recorder import Recorder
from tracer.core.registry import Binding, bindings
from tracer.errors import UnsupportedOptimizer, is_mistake
from tracer.kinds import KINDS, OPTAX, kind_of

__tracebackhide__ = is_mistake

KIND = next(each for each in KINDS if each.name == OPTAX)


class TracedUpdate:
    """The `update` of a transformation, which is counted as long as it is wrapped."""

    def __init__(self, given: Any) -> None:
        """`given` is the transformation."""
        functools.update_wrapper(self, given.update)
        self.given = given
        self.original: Callable[..., Any] = given.update
        self.sought: Any = given if _is_multi_steps(given) else given.update
        """By what functions are found that use it."""
        self.limit: int | None = None
        """After how many steps in a row an `apply_if_finite` in it leaves out none."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        binding = bindings.get(id(self))
        if binding is None or binding.observer is None or binding.recorder.broken:
            return self.original(*args, **kwargs)
        backend: Any = binding.recorder.backend
        with backend.new_step(self, binding, args, kwargs) as step:
            step.result = self.original(*args, **kwargs)
            return step.result

    def __copy__(self) -> "TracedUpdate":
        return self

    def __deepcopy__(self, memo: Any) -> "TracedUpdate":
        return self

    def __reduce__(self) -> Any:
        return _itself, (self.original,)


def _itself(original: Any) -> Any:
    """What a pickle of a traced `update` has."""
    return original


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


def traced(given: Any, recorder: Recorder, line: str) -> tuple[Any, TracedUpdate]:
    """A transformation as `given` that this recorder counts, and its `update`.

    `line` is that of the program which wraps it.
    """
    update = TracedUpdate(given)
    name = label(given)
    known = TracedOptimizer(ref(update), lambda: name, f"optax.{name}", KIND, (), line)
    index = recorder.optimizers.add(known)
    bindings[id(update)] = Binding(update, recorder, index, _nothing_nested)
    settings, update.limit = settings_in(given)
    known.settings.update(settings)
    if not _is_multi_steps(given):
        return given._replace(update=update), update
    made = copy.copy(given)
    made.update = update
    return made, update


def go_on(update: TracedUpdate, *, retrace: bool = True) -> Recorder:
    """Count the calls of `update` from now on."""
    binding = bindings[id(update)]
    if binding.observer is None:
        binding.recorder.optimizers.begin(binding.index, retrace)
        binding.observer = "update"  # which sees its steps itself
    return binding.recorder


def watched() -> list[TracedUpdate]:
    """Those that are counted now."""
    alive = [(each, each.optimizer()) for each in list(bindings.values())]
    return [own for each, own in alive if type(own) is TracedUpdate and each.observer is not None]


def refuse(given: Any) -> NoReturn:
    """Raise for a transformation that is not traced where it cannot be exchanged for one."""
    raise UnsupportedOptimizer(
        f"this transformation of optax ({label(given)}) is not traced: give what tracer.wrap(tx) "
        "gave back, and train with that"
    )


def _nothing_nested(optimizer: Any, binding: Binding) -> Binding:
    binding.settled = True
    return binding
