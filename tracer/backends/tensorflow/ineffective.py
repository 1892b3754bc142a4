"""Whether an apply method writes to its variable: in a graph by its ops, else by a look at memory.

A method that says `variable = variable - rate * gradient` runs, and changes nothing. Gradients of 0
and a rate of 0 are no such case: then something is written, though it is what was there before. Of
what cannot be known nothing is said, so a site is taken to write unless the contrary is certain.
"""

import dis
import inspect
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import pairwise
from types import CodeType, FunctionType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from tracer.backends.tensorflow import compat, writes
from tracer.backends.tensorflow.variables import canonical
from tracer.core import backend
from tracer.core.calls import Frame
from tracer.core.interrupts import suppress_faults

_MAX_LOOKS = 3
"""At how many calls of a method that does not write is looked: a look takes 0.1 ms."""


class _Traced(NamedTuple):
    """A call of an apply method that was traced: its ops have the numbers from `start` to `end`."""

    site: int
    handles: Collection[Any]
    start: int
    end: int


class WriteChecks(backend.WriteChecks):
    """Which sites of updates were seen to write to their variable, and which not to."""

    def __init__(self, root: backend.Root) -> None:
        self._root = root
        self._writing: set[int] = set()
        self._idle: set[int] = set()
        self._looks: Counter[int] = Counter()
        self._traced: WeakKeyDictionary[Any, list[_Traced]] = WeakKeyDictionary()

    def ineffective(self) -> set[int]:
        """The sites that certainly never wrote."""
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
        if site in self._writing or self._looks[site] >= _MAX_LOOKS:
            return None
        before = None
        with suppress_faults():  # a variable that cannot be read now
            before = writes.held(canonical(variable)) if len(_handles(variable)) == 1 else None
        if before is None:
            self._writing.add(site)
        return before

    def look_again(self, site: int, variable: Any, before: Any) -> bool:
        """Look at `variable`, which held `before`, after a call; False to look at the next too.

        What one call does goes for all calls of a method that does the same in each: another one
        may only not have come yet to where it writes.
        """
        self._looks[site] += 1
        idle = False
        with suppress_faults():
            optimizer, method = self._root.sites.sites[site][:2]
            idle = writes.holds(canonical(variable), before) and _does_the_same_in_each_call(
                self._root.optimizers.known(optimizer)[0], method
            )
        (self._idle if idle else self._writing).add(site)
        return not idle or self._looks[site] >= _MAX_LOOKS


_FRAMEWORKS = ("builtins", "keras", "math", "numpy", "tensorflow", "tf_keras")
_CALLING = ("cond", "case", "while", "function", "map", "scan", "fold")
"""What is in the names of functions that call others."""


def _does_the_same_in_each_call(optimizer: Any, name: str) -> bool:
    """Whether a method decides nothing and calls nothing but what ships with a framework.

    One that assigns to its variable may assign what is there already, in the same memory.
    """
    methods = [
        getattr(inspect.getattr_static(type(optimizer), each, None), "__wrapped__", None)
        for each in (name, name.removesuffix("_duplicate_indices"))
    ]
    # What a framework does for duplicate indices is to call the method without them.
    method = next((each for each in methods if each is not None and not _ships(each)), None)
    if not isinstance(method, FunctionType) or hasattr(method, "__wrapped__"):
        return False
    code, variable = method.__code__, method.__code__.co_varnames[2]
    instructions = list(dis.get_instructions(code))
    given = (each.argval for each in instructions)
    names = [str(n) for each in given for n in (each if isinstance(each, tuple) else [each])]
    found = [inspect.getattr_static(optimizer, each, None) for each in code.co_names]
    found += [method.__globals__.get(each) for each in code.co_names]
    return (
        {*code.co_freevars} <= {"__class__"}
        and not any(isinstance(each, CodeType) for each in code.co_consts)
        and not any(each.opcode in _JUMPS for each in instructions)
        and not any(variable in each and "assign" in "".join(each) for each in pairwise(names))
        and not any(word in each for each in code.co_names for word in _CALLING)
        and all(not callable(each) or _ships(each) for each in found)
    )


_JUMPS = {*dis.hasjrel, *dis.hasjabs}


def _ships(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] in _FRAMEWORKS


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
