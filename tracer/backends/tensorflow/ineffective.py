"""Whether an apply method writes to its variable: in a graph by its ops, else by a look at memory.

A method that says `variable = variable - rate * gradient` runs, and changes nothing. Gradients of 0
and a rate of 0 are no such case: then something is written, though it is what was there before. In
eager mode each call of an apply method on a variable is looked at until one has written to it. Of
what cannot be known nothing is said, so a site is taken to write unless the contrary is certain.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from tracer.backends.tensorflow import compat, writes
from tracer.backends.tensorflow.variables import canonical
from tracer.core import backend
from tracer.core.calls import Frame
from tracer.core.interrupts import suppress_faults


class _Traced(NamedTuple):
    """A call of an apply method that was traced: its ops have the numbers from `start` to `end`."""

    site: int
    handles: Collection[Any]
    start: int
    end: int


class WriteChecks(backend.WriteChecks):
    """Which sites of updates were seen to write to their variable, and which not to."""

    def __init__(self) -> None:
        self._writing: set[int] = set()
        self._idle: set[int] = set()
        self._traced: WeakKeyDictionary[Any, list[_Traced]] = WeakKeyDictionary()

    def ineffective(self) -> set[int]:
        """The sites that were looked at and never wrote so far."""
        return self._idle - self._writing

    # In a graph.

    def traced(self, site: int, frame: Frame) -> bool:
        """An apply method was called, `frame`, and its ops are the last ones of its graph.

        Whether that is the graph of a function, and not one of a Session.
        """
        in_function = bool(compat.eager_outside_functions())
        if in_function and site not in self._writing:
            graph, start = frame.place.graph, frame.extra.start
            call = _Traced(site, _handles(frame.variable), start, graph.num_operations())
            self._traced.setdefault(graph, []).append(call)
        return in_function

    def judge(self, graph: Any) -> None:
        """Find out which of the calls that were traced to `graph` write: it is complete."""
        calls = self._traced.pop(graph, [])
        if not calls:
            return
        ops, origin = graph.get_operations(), writes.origins(graph)
        for each in calls:
            may_write = True
            with suppress_faults():  # an op of a kind that nobody here knows
                made = reversed(ops[each.start : each.end])
                may_write = writes.may_write(made, each.handles, origin)
            (self._writing if may_write else self._idle).add(each.site)

    # In eager mode.

    def look(self, site: int, variable: Any) -> Any:
        """What `variable` holds before a call; None if there is no need to look, or no way."""
        if site in self._writing:
            return None
        before = None
        with suppress_faults():  # a variable that cannot be read now
            before = writes.held(canonical(variable)) if len(_handles(variable)) == 1 else None
        if before is None:
            self._writing.add(site)
        return before

    def look_again(self, site: int, variable: Any, before: Any) -> bool:
        """Look at `variable`, which held `before`, after a call; False to look at the next too.

        One that has not written yet may only not have come to where it writes.
        """
        wrote = True
        with suppress_faults():
            wrote = not writes.holds(canonical(variable), before)
        (self._writing if wrote else self._idle).add(site)
        return wrote


def _handles(variable: Any) -> Sequence[Any]:
    """The handles of all copies of a variable; none if there may be others."""
    own, raw = canonical(variable), getattr(variable, "_value", variable)  # of Keras 3
    copies = getattr(own, "values", None)
    found = [*copies] if isinstance(copies, tuple) else [own]
    found += [getattr(each, "_v", None) for each in found]
    if any(getattr(each, "_packed_var", None) is not None for each in (own, raw)):
        return ()
    known = [each for each in (*found, raw) if isinstance(each, compat.ResourceVariable)]
    return list({id(each.handle): each.handle for each in known}.values())
