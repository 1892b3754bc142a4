"""Observe the transformations that a program makes, during recordings.

All are made by the classes `GradientTransformation` and `MultiSteps`, also those that a function
imported earlier makes, or the program by hand. Each that a function makes with its `update`
gets a `TracedUpdate`, which reports its first call during a recording. If another transformation
makes that call, it is a part, and not counted by itself.

An `update` of any other kind stays as it is: several transformations may share it, a tree that is
made again has it, or it is an object with attributes of its own.
"""

import functools
import sys
from collections.abc import Callable
from itertools import takewhile
from types import FrameType, FunctionType
from typing import Any

from tracer.backends.optax import updates
from tracer.backends.optax.inside import held_in, label, under_way
from tracer.backends.optax.updates import TracedUpdate
from tracer.core.call_paths import frames_from
from tracer.core.optimizers import made_here
from tracer.core.patches import Patch

_exchanged: list[Patch] = []


def exchange(first_call: Callable[[TracedUpdate], None]) -> None:
    """Observe what is made from now on; `first_call` runs before its first step."""
    if updates.first_call is None:
        updates.unused.clear()
    updates.first_call = first_call
    multi_steps = getattr(sys.modules.get("optax"), "MultiSteps", None)
    if multi_steps is not None and not _exchanged:
        made = sys.modules["optax._src.base"].GradientTransformation
        for home, name, observing in (
            (made, "__new__", _observing_new),
            (multi_steps, "__init__", _observing_init),
        ):
            ours = observing(getattr(home, name))
            _exchanged.append(Patch(home, name, ours, "to see what is made", "recorded"))
            _exchanged[-1].put_in()


def put_back() -> None:
    """Observe nothing more."""
    updates.first_call = None
    while _exchanged:
        _exchanged.pop().take_out()


def _observing_new(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __new__(cls: type, *args: object, **kwargs: object) -> Any:
        made = original(cls, *args, **kwargs)
        is_part = under_way.depth > 0  # made by `inject_hyperparams` in each step, for example
        if is_part or not cls.__module__.startswith("optax."):
            return made
        is_own = _makes(sys._getframe(1), made.update)
        return made._replace(update=_observed(made)) if is_own else made

    return __new__


def _makes(frame: FrameType, update: object) -> bool:
    """True if a call of a function defined this `update`, so that nothing else has it."""
    if not isinstance(update, FunctionType) or "<locals>" not in update.__qualname__:
        return False
    return update.__code__ in frame.f_code.co_consts


def _observing_init(original: Callable[..., None]) -> Callable[..., None]:
    """For `MultiSteps`, a class that programs derive from."""

    @functools.wraps(original)
    def __init__(made: Any, *args: object, **kwargs: object) -> None:
        original(made, *args, **kwargs)
        if "update" not in vars(made):
            made.update = _observed(made)

    return __init__


def _observed(made: object) -> TracedUpdate:
    """A traced `update`, with the name of the outermost function of optax that makes it."""
    frames = [*frames_from(sys._getframe(2))]
    makers = [*takewhile(_is_of_optax, frames)]
    known = makers and makers[-1].f_globals.get(makers[-1].f_code.co_name)
    name = makers[-1].f_code.co_name if known else label(made)
    update = TracedUpdate(made, name, made_here(made))
    for part in held_in(update.original):
        updates.unused.pop(id(part), None)
    in_init = any(frame.f_code.co_name in _INITS for frame in filter(_is_of_optax, frames))
    if not in_init:
        updates.unused[id(update)] = update
    return update


_INITS = ("init", "init_fn")
"""Functions of optax that may make what they only initialize, as of `inject_hyperparams`."""


def _is_of_optax(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith("optax.")
