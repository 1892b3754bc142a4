"""Observe the transformations that a program makes, during recordings.

All are made by the classes `GradientTransformation` and `MultiSteps`, also those that a function
imported earlier makes, or the program by hand. Each gets a `TracedUpdate`, which reports its first
call during a recording. If another transformation makes that call, it is a part, and not counted
by itself.
"""

import functools
import sys
from collections.abc import Callable
from itertools import takewhile
from types import FrameType
from typing import Any
from weakref import WeakValueDictionary

from tracer.backends.optax import updates
from tracer.backends.optax.inside import held_in, label, under_way
from tracer.backends.optax.updates import TracedUpdate
from tracer.core.call_paths import frames_from
from tracer.core.optimizers import made_here
from tracer.core.patches import Patch

_COPYING = ("copyreg", "equinox", "jax")
"""The packages that make a transformation again, as of the leaves of a tree."""
_known: "WeakValueDictionary[int, TracedUpdate]" = WeakValueDictionary()
"""By the `id` of the original: a program that makes a tree again has the same function in it."""
_exchanged: list[Patch] = []


def exchange(first_call: Callable[[TracedUpdate], None] | None) -> None:
    """Observe what is made from now on; `first_call`, if any, runs before its first step."""
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
        home = str(sys._getframe(1).f_globals.get("__name__")).partition(".")[0]
        is_part = under_way.depth > 0  # made by `inject_hyperparams` in each step, for example
        is_seen = type(made.update) is TracedUpdate or not callable(made.update)  # a mark of a tree
        if is_part or is_seen or home in _COPYING:
            return made
        return made._replace(update=_known.get(id(made.update)) or _observed(made))

    return __new__


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
    _known[id(update.original)] = update
    for part in held_in(update.original):
        updates.unused.pop(id(part), None)
    in_init = any(frame.f_code.co_name in _INITS for frame in filter(_is_of_optax, frames))
    if updates.first_call is not None and not in_init:
        updates.unused[id(update)] = update
    return update


_INITS = ("init", "init_fn")
"""Functions of optax that may make what they only initialize, as of `inject_hyperparams`."""


def _is_of_optax(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith("optax.")
