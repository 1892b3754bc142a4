"""Observe the public functions of optax that make transformations, during recordings.

They are replaced only in the namespaces that programs use: the modules of optax import one another
from `optax._src`. Names imported earlier (`from optax import adam`) and transformations that the
program makes of two functions are not observed.

A maker's transformation gets a `TracedUpdate`, which reports its first call during a recording. If
another transformation makes that call, it is a part, and not counted by itself.
"""

import copy
import functools
import sys
from collections.abc import Callable
from typing import Any

import wrapt

from tracer.backends.optax import updates
from tracer.backends.optax.inside import under_way
from tracer.backends.optax.updates import TracedUpdate, is_transformation
from tracer.core.optimizers import made_here
from tracer.core.patches import Patch

NAMESPACES = ("optax", "optax.contrib", "optax.transforms")
_UNANNOTATED = {"dog", "dowg", "monitor", "scale_by_factored_rms"}
"""The makers without a return annotation."""

_exchanged: list[Patch] = []
_makers: dict[int, "Maker"] = {}
"""By `id` of the original; one for all namespaces, kept forever."""


class Maker(wrapt.FunctionWrapper):  # type: ignore[type-arg]
    """A function that makes transformations; it looks, compares and pickles like the original."""

    def __init__(self, original: Callable[..., Any], name: str) -> None:
        super().__init__(original, functools.partial(_call, name))

    def __copy__(self) -> "Maker":
        return self

    def __deepcopy__(self, memo: Any) -> "Maker":
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        return copy.copy, (self.__wrapped__,)


def _call(name: str, original: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """What a maker makes, in a form whose calls are observed."""
    made = original(*args, **kwargs)
    if not _exchanged or under_way.depth:  # a part: made by `inject_hyperparams` in each step
        return made
    if is_transformation(made):
        if not isinstance(made.update, TracedUpdate):
            update = TracedUpdate(made, name, made_here(made))
            made = made._replace(update=update)
            updates.note_made(update)
    elif callable(made) and not isinstance(made, type):  # made by `inject_hyperparams`
        own = getattr(made, "__name__", name)
        made = Maker(made, own if own.isidentifier() else name)
    return made


def exchange(first_call: Callable[[TracedUpdate], None] | None) -> None:
    """Observe makers from now on; `first_call`, if any, runs before the first step of each."""
    if updates.first_call is None:
        updates.unused.clear()
    updates.first_call = first_call
    if _exchanged:
        return
    for module in filter(None, map(sys.modules.get, NAMESPACES)):
        for name, each in list(vars(module).items()):
            if not name.startswith("_") and _makes_transformations(each, name):
                maker = _makers.get(id(each)) or _makers.setdefault(id(each), Maker(each, name))
                _put(module, name, maker)
    multi_steps = getattr(sys.modules.get("optax"), "MultiSteps", None)
    if multi_steps is not None:
        _put(multi_steps, "__init__", _reporting(multi_steps.__init__))


def put_back() -> None:
    """Restore the namespaces, except names that the program has replaced since."""
    updates.first_call = None
    while _exchanged:
        _exchanged.pop().take_out()


def _put(home: Any, name: str, maker: Any) -> None:
    _exchanged.append(Patch(home, name, maker, "to see what it makes", "recorded"))
    _exchanged[-1].put_in()


def _makes_transformations(each: Any, name: str) -> bool:
    if isinstance(each, type | Maker) or not callable(each):
        return False
    plain = getattr(each, "func", each)  # `nadam` is a partial function
    returned = getattr(plain, "__annotations__", {}).get("return")
    return name in _UNANNOTATED or "GradientTransformation" in str(returned)


def _reporting(original: Callable[..., None]) -> Callable[..., None]:
    """Wrap the `__init__` of `MultiSteps`, a class that programs derive from."""

    @functools.wraps(original)
    def __init__(made: Any, *args: Any, **kwargs: Any) -> None:
        original(made, *args, **kwargs)
        if _exchanged and "update" not in vars(made):
            made.update = TracedUpdate(made, type(made).__name__, made_here(made))
            updates.note_made(made.update)

    return __init__
