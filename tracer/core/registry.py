"""Registers the optimizers that are or were wrapped, and who holds them.

Nothing is stored on an optimizer: it would be tracked, saved and restored. Optimizers are keyed by
`id`, because they may define comparison and hashing as they like.
"""

from collections.abc import Callable, MutableMapping, MutableSet
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from tracer.core.optimizers import Binding
from tracer.core.recorder import Recorder
from tracer.core.snapshot import Baseline


class Holder:
    """Who has optimizers traced until it lets them go: the program, by `wrap`, or a recording."""

    def __init__(self) -> None:
        self.since: MutableMapping[Recorder, Baseline | None] = {}
        """What each recorder had counted before; None if nothing."""
        self.asked: MutableSet[Recorder] = set()
        """The recorders of optimizers that it holds by name."""
        self.ended = False


PROGRAM = Holder()
PROGRAM.since, PROGRAM.asked = WeakKeyDictionary(), WeakSet()


bring_in: Callable[[Any, Binding], Binding]
"""Traces an optimizer that holds, or is in, the one of the binding; `hooks.wrapping` sets it."""
bindings: dict[int, Binding] = {}


def is_traced(optimizer: object) -> bool:
    """Whether `optimizer` is traced now; the traced class alone, as of a copy, is not enough."""
    binding = bindings.get(id(optimizer))
    return binding is not None and not all(holder.ended for holder in binding.holders)


def recorder_of(optimizer: object) -> Recorder | None:
    """The recorder of an optimizer that is or was wrapped."""
    return getattr(bindings.get(id(optimizer)), "recorder", None)
