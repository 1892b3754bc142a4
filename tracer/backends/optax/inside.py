"""Look inside a transformation: functions that reference functions. Needs no JAX."""

import threading
import types
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from tracer.core.reachable import closure_of, held_by, reachable

_FAR = 50
"""How many references to follow from a transformation."""


class _CallsUnderWay(threading.local):
    depth = 0
    zeros: dict[int, Callable[[], object]]
    """By `id`, weak references to the leaves that are set to zero in the outermost call."""
    names: set[str]
    """The names of the leaves that `set_to_zero` got in the innermost call."""
    decays: dict[float, set[str]]
    """By weight decay, the names of the leaves to which it was added in this call."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.zeros, self.names, self.decays = {}, set(), defaultdict(set)


under_way = _CallsUnderWay()
"""The calls of `update` under way on this thread."""


def settings_in(transformation: object) -> dict[str, Any]:
    """The settings inside a transformation that change the counts, for the trace.

    The number of steps of a `MultiSteps` or an `apply_every` is known if it is constant.
    """
    numbers: set[object] = set()
    skips: set[str] = set()
    for held in held_in(transformation):
        maker = _maker(held)
        if maker == "apply_if_finite":
            skips.add(maker)
        elif maker == "apply_every":
            numbers.add(closure_of(held).get("k"))
        elif type(held).__name__ == "MultiSteps":
            numbers.add(closure_of(held._every_k_schedule).get("every_k_schedule"))
            if not getattr(held._should_skip_update_fn, "__qualname__", "").startswith("MultiSt"):
                skips.add("MultiSteps")
    constants = [each for each in numbers if isinstance(each, int)]
    settings = {
        "gradient_accumulation_steps": constants[0] if len(constants) == 1 else None,
        "skipped_by": " or ".join(sorted(skips)) or None,
    }
    return {name: each for name, each in settings.items() if each}


def _maker(held: object) -> str:
    """The name of the optax function that made a function."""
    return str(getattr(held, "__qualname__", "")).partition(".")[0]


def held_in(update: object) -> list[Any]:
    """The objects that the `update` of a transformation references."""
    return reachable(update, _held_by, _FAR)


def holds(update: object, wanted: Callable[[object], bool]) -> bool:
    """True if the `update` of a transformation references a `wanted` object."""
    return any(map(wanted, held_in(update)))


def _held_by(held: object) -> Iterable[object]:
    """The objects that an optax object, a function or a collection references."""
    own = type(held).__module__.partition(".")[0] in ("optax", "tracer")
    if own and not isinstance(held, tuple):
        return list(getattr(held, "__dict__", {}).values())
    if isinstance(held, types.FunctionType) and held.__module__.startswith("optax."):
        return closure_of(held).values()  # its globals are all of optax
    return held_by(held)


_SHIPPED = {
    ("identity",): "sgd",
    ("trace",): "sgd",
    ("scale_by_adam",): "adam",
    ("scale_by_adam", "add_decayed_weights"): "adamw",
    ("scale_by_adam", "add_decayed_weights", "scale_by_trust_ratio"): "lamb",
    ("scale_by_lion", "add_decayed_weights"): "lion",
    ("scale_by_rms",): "rmsprop",
    ("scale_by_rss",): "adagrad",
}
"""The optimizers of optax that are chains, by their parts without the rate."""
_RATES = ("scale", "scale_by_schedule")
_SEARCHES = (
    "mechanize",
    "reduce_on_plateau",
    "scale_by_backtracking_linesearch",
    "scale_by_zoom_linesearch",
)
"""The makers whose state has a factor of the learning rate."""


def rates_in(transformation: object) -> list[Any]:
    """Its factors: numbers, schedules, and None for arrays and for numbers in the state."""
    found: list[Any] = []
    for held in held_in(transformation):
        maker, own = _maker(held), closure_of(held)
        if maker == "scale" and "step_size" in own:
            size = own["step_size"]
            found.append(0.0 - size if isinstance(size, int | float) else None)
        elif maker == "scale_by_schedule" and "step_size_fn" in own:
            schedule = own["step_size_fn"]
            found.append(closure_of(schedule).get("learning_rate", schedule))
        elif maker in _SEARCHES and held.__name__ == "update_fn":
            found.append(None)
        elif maker == "inject_hyperparams" and "numeric_hps" in own:  # not in both functions
            schedule = own["sched_hps"].get("learning_rate")
            if schedule is not None or "learning_rate" in own["numeric_hps"]:
                found.append(getattr(schedule, "schedule_fn", schedule))
    schedules = any(map(callable, found))
    return [each for each in found if not schedules or callable(each) or each not in (1, -1)]


def is_of_optax(schedule: object) -> bool:
    """True if a schedule and the functions in it are all optax's, so that calling it is safe."""
    held = filter(callable, held_in(schedule))
    return all(str(each.__module__).startswith("optax.") for each in held)


def label(transformation: object) -> str:
    """The name of a transformation: of the function that made it, as far as known.

    >>> def scale(by):
    ...     def update(updates, state, params=None):
    ...         return updates * by, state
    ...     return update
    >>> label(scale(2))
    'scale'
    """
    update = getattr(transformation, "update", transformation)
    if isinstance(update, types.MethodType):
        return type(update.__self__).__name__
    update = getattr(update, "original", update)  # of a traced one
    name = str(getattr(update, "__qualname__", type(update).__name__)).partition(".<locals>")[0]
    name, named = name.rpartition(".")[2], closure_of(update)
    if name == "with_extra_args_support" and "tx" in named:
        return label(named["tx"])
    if name == "chain" and "update_fns" in named:
        *parts, last = [label(each) for each in named["update_fns"]] or [""]
        return _SHIPPED.get(tuple(parts), name) if last in _RATES else name
    inner = str(getattr(named.get("inner_factory"), "__name__", ""))  # of `inject_hyperparams`
    return inner if inner.isidentifier() else name
