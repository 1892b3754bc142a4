"""Whether an apply method writes to its variable: in a graph by its ops, else by a look at memory.

A method that says `variable = variable - rate * gradient` runs, and changes nothing. Gradients of 0
and a rate of 0 are no such case: then something is written, though it is what was there before. Of
what cannot be known nothing is said, so a site is taken to write unless the contrary is certain.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from tracer.backends.tensorflow import compat, writes
from tracer.backends.tensorflow.variables import canonical
from tracer.core import backend
from tracer.core.calls import Frame
from tracer.core.interrupts import suppress_faults

_LOOKS = 3
"""At how many calls of a method that does not write is looked: a look takes 0.1 ms."""


class _Traced(NamedTuple):
    """A call of an apply method that was traced: its ops have the numbers from `start` to `end`."""

    site: int
    handles: Collection[Any]
    start: int
    end: int


class Assigning(backend.Assigning):
    """Which sites of updates were seen to write to their variable, and which not to."""

    def __init__(self) -> None:
        self._writing: set[int] = set()
        self._idle: dict[int, bool] = {}  # with whether a look at memory says so
        self._looks: Counter[int] = Counter()
        self._traced: WeakKeyDictionary[Any, list[_Traced]] = WeakKeyDictionary()

    def idle(self, straight: Collection[int]) -> set[int]:
        """The sites that certainly never wrote.

        What was seen of a call in eager mode goes for all calls of methods that are `straight`:
        another one may only not have come yet to where it writes.
        """
        return {
            site
            for site, looked in list(self._idle.items())  # other threads add to it
            if site not in self._writing and (site in straight or not looked)
        }

    # In a graph.

    def traced(self, site: int, frame: Frame) -> None:
        """An apply method was called, `frame`, and its ops are the last ones of its graph."""
        if site not in self._writing:
            graph, start = frame.place.graph, frame.extra.start
            call = _Traced(site, _handles(frame.variable), start, graph.num_operations())
            self._traced.setdefault(graph, []).append(call)

    def judge(self, graph: Any) -> None:
        """Find out which of the calls that were traced to `graph` write: it is complete."""
        calls = self._traced.pop(graph, [])
        if not calls:
            return
        inside = writes.OpsOf(graph)
        for each in calls:
            may_write = True
            with suppress_faults():  # an op of a kind that nobody here knows
                may_write = inside.may_write(each.handles, each.start, each.end)
            if may_write:
                self._writing.add(each.site)
            else:
                self._idle.setdefault(each.site, False)

    # In eager mode.

    def look(self, site: int, variable: Any) -> Any:
        """What `variable` holds before a call; None if there is no need to look, or no way."""
        if site in self._writing or self._looks[site] >= _LOOKS:
            return None
        before = None
        with suppress_faults():  # a variable that cannot be read now
            before = writes.held(canonical(variable)) if len(_handles(variable)) == 1 else None
        if before is None:
            self._writing.add(site)
        return before

    def look_again(self, site: int, variable: Any, before: Any) -> bool:
        """Look at `variable`, which held `before`, after a call; False to look at the next too."""
        self._looks[site] += 1
        idle = False
        with suppress_faults():
            idle = writes.holds(canonical(variable), before)
        if idle:
            self._idle[site] = True
        else:
            self._writing.add(site)
        return not idle or self._looks[site] >= _LOOKS


def _handles(variable: Any) -> Sequence[Any]:
    """The handles of all copies of a variable; none if there may be others."""
    own = canonical(variable)
    copies = getattr(own, "values", None)
    found = [*copies] if isinstance(copies, tuple) else [own]
    found += [inner for each in found if (inner := getattr(each, "_v", None)) is not None]
    raw = getattr(variable, "_value", variable)  # of Keras 3
    found += [raw] if all(raw is not each for each in found) else []
    if any(getattr(each, "_packed_var", None) is not None for each in (own, raw)):
        return ()
    known = [each for each in found if isinstance(each, compat.ResourceVariable)]
    handles = {id(each.handle): each.handle for each in known}
    return list(handles.values())
