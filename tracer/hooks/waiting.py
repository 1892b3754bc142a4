"""Optimizers that were made before a block and wait in it: they are met at their first call.

To meet one takes half a millisecond, and a process may have hundreds that a block does not use. So
a block only gives them their traced class, whose methods tell of the first call. That comes too
late for what runs without Python: for functions that use one and are not counted, for calls that
are under way, for graphs of a Session. Optimizers with such are met at once: see `met_at_once`.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

from tracer.backends.tensorflow import compat, functions, users
from tracer.backends.tensorflow.older_functions import uncounted_users
from tracer.core.registry import (
    Binding,
    Waiting,
    bindings,
    plain_class,
    plain_classes,
    set_class,
    traced_classes,
    waiting,
)
from tracer.errors import UnsupportedOptimizer
from tracer.hooks.family import kind_to_trace, nested_in
from tracer.hooks.interception import CODES
from tracer.hooks.traced_class import traced_class
from tracer.hooks.wrapping import own_name
from tracer.kinds import kind_of

_looking = threading.Lock()
_uncounted: dict[int, tuple[ref[Any], list[ref[Any]]]] = {}
"""By the id of an optimizer: it, and the functions that use it and are not counted."""


def met_at_once(alive: Sequence[Any], *, effects: bool) -> set[int]:
    """The ids of those that cannot wait; `effects` if the variables are to be compared.

    To be asked in each block: functions that are new since the last one are looked at.
    """
    with _looking:
        _look_at_new_functions(alive)
        _forget_what_is_gone()
    if functions.anything_runs(CODES):
        return {id(each) for each in alive}
    may_wait: dict[int, bool] = {}
    found = set()
    for each in alive:
        cls, binding = type(each), bindings.get(id(each))
        if id(cls) not in may_wait:
            may_wait[id(cls)] = _may_wait(each)
        if (
            not may_wait[id(cls)]
            or id(each) in _uncounted
            or (binding is not None and not _is_told(binding, effects))
        ):
            found.add(id(each))
    if found:
        for group in groups(alive).values():
            members = {id(member) for each in group if (member := each()) is not None}
            if members & found:
                found |= members
    return found


def wait(optimizer: Any, called: Callable[[Any], None]) -> bool:
    """Give an optimizer its traced class and have its first call told; whether it had another."""
    exchanged = id(type(optimizer)) not in plain_classes
    if exchanged:
        set_class(optimizer, traced_classes[id(type(optimizer))])
    if exchanged or id(optimizer) not in waiting:  # what is there may be of one that is gone
        waiting[id(optimizer)] = Waiting(called, compat.unique_number())
    return exchanged


def groups(optimizers: Sequence[Any]) -> dict[int, list[ref[Any]]]:
    """For each of them, by its id, those that are nested in it or it in them, with it itself."""
    found: dict[int, list[ref[Any]]] = {}
    for optimizer in optimizers:
        group = found.setdefault(id(optimizer), [ref(optimizer)])
        for member in nested_in(optimizer):
            other = found.setdefault(id(member), [ref(member)])
            if other is not group:
                group += other
                for each in other:
                    found[id(each())] = group
    return found


def _may_wait(optimizer: Any) -> bool:
    """Whether its class can be traced, and its kind has no update in the graph of a Session."""
    try:
        kind = kind_to_trace(optimizer)
        traced_class(plain_class(type(optimizer)), kind)
    except UnsupportedOptimizer:
        return False
    return kind.name not in ("v1", "legacy") or not compat.session_graphs_alive()


def _is_told(binding: Binding, effects: bool) -> bool:
    """Whether its recorder is told of each execution before, in time for what it does then."""
    recorder = binding.recorder
    if not (binding.traced or recorder.used):
        return True  # as nearly all; it takes a third of the time
    return recorder.is_told and not (effects and recorder.blocks.counters.in_programs)


def _look_at_new_functions(alive: Sequence[Any]) -> None:
    """Note which of the optimizers the functions use that are new, and are not counted."""
    new = users.new_functions()
    if not new:
        return
    among = users.Functions(new)
    for each in alive:
        kind, binding = kind_of(type(each)), bindings.get(id(each))
        if kind is None:
            continue
        known = None if binding is None else (binding.recorder.optimizers.older, binding.index)
        using = [ref(f) for f in uncounted_users(among, each, kind, own_name(each), known)]
        if using:
            entry = _uncounted.get(id(each))
            if entry is None or entry[0]() is not each:  # an `id` is used again
                entry = _uncounted[id(each)] = ref(each), []
            entry[1].extend(using)


def _forget_what_is_gone() -> None:
    """Keep of those notes the optimizers that are alive, and the functions that can be called."""
    if not _uncounted:
        return
    gone = users.kept_for_nothing(each for _, using in _uncounted.values() for each in using)
    gone.add(id(None))
    for key, (optimizer, using) in list(_uncounted.items()):
        using[:] = [each for each in using if id(each()) not in gone]
        if not using or optimizer() is None:
            del _uncounted[key]
