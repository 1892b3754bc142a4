"""What the steps of one root optimizer did to the variables: only where this was asked for.

A step is compared as a whole. Each variable that the outermost step method is handed is read when
the step begins, and once more when it has ended: so what weight decay, a constraint or an average
overwrites beside the apply methods counts too. Two questions are asked of each: is it *unchanged*,
all bits of its memory the same, and is something in it *not finite*. A step in which that is so is
a mark. A step in a graph counts its marks in the graph (see `marks`), one in eager mode in a log.

The value from the beginning is held until the end, so what writes to the variable in place has to
copy it: that costs memory, never the result.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tracer.backends.tensorflow import compat, marks
from tracer.backends.tensorflow.variables import canonical
from tracer.core.calls import Frame
from tracer.core.counters import Source
from tracer.core.effects import Logs, sources_of
from tracer.core.settle import Reading


class Effects(Logs):
    """What was compared on each replica; thread-safe, if the lock of the counters is held where it
    says so.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        """`note` is called with what could not be compared."""
        super().__init__()
        self._note = note
        self._marks: dict[int, marks.Marks] = {}
        self._making = threading.Lock()

    def hold(self, frame: Frame, index: int, variable: Any) -> None:
        """The step `frame` is handed the variable with this index: read it, before it changes."""
        if not compat.eager_outside_functions():
            self._note(
                "effects in the graph of a Session are not known: its variables are not compared"
            )
            return
        graph = frame.place.graph
        if graph is not None:
            with graph.as_default():
                self._hold(frame, index, variable)
        elif compat.in_eager():
            self._hold(frame, index, variable)
        else:
            with compat.outside_of_graphs():
                self._hold(frame, index, variable)

    def _hold(self, frame: Frame, index: int, variable: Any) -> None:
        held = frame.before
        if held is None:
            held = frame.before = {}
        for replica, own in _copies(variable, frame):
            if not isinstance(own, compat.ResourceVariable) or not marks.comparable(own):
                self._note(
                    f"effects on a variable of the type {getattr(own.dtype, 'name', own.dtype)} "
                    f"and the shape {own.shape} ({type(own).__name__}) are not known: it is not "
                    "compared"
                )
            elif id(own.handle) not in held:
                held[id(own.handle)] = marks.hold(index, replica, own)

    # A step has ended, which a block counts; on the thread that made the call.

    def count(
        self, frame: Frame, replica: int, device: str, stamp: Any, work: Sequence[Any]
    ) -> None:
        """Add the count to the current graph, in which the ops `work` are the updates."""
        held = _of_replica(frame, replica)
        with compat.control_dependencies(work):
            bits = marks.questions(held)
        with self._making:
            if replica not in self._marks:
                self._marks = {**self._marks, replica: marks.Marks(device)}
        self._marks[replica].count(tuple(each.variable for each in held), stamp, bits, work)

    def seen(self, frame: Frame, replica: int) -> list[Source]:
        """What is to be logged of a step in eager mode."""
        held = _of_replica(frame, replica)
        variables = tuple(each.variable for each in held)
        bits = [bool(each) for each in marks.questions(held)]
        return sources_of(variables, bits[: len(held)], bits[len(held) :])

    # The lock of the counters is held by whoever calls these.

    def read(self, replica: int, begun: int) -> dict[Source, Reading]:
        """What was counted on a replica, of the steps up to `begun`."""
        readings = super().read(replica, begun)
        counted = self._marks.get(replica)
        if counted is not None:
            for variables, of_bits in counted.read(begun).items():
                readings |= dict(zip(_sources(variables), of_bits, strict=True))
        return readings

    def children(self) -> dict[str, Any]:
        """What an exported function captures, by name."""
        return {
            f"replica_{replica}_{name}": variable
            for replica, counted in self._marks.items()
            for name, variable in counted.children().items()
        }


def _sources(variables: tuple[int, ...]) -> Iterable[Source]:
    """What the counters of a step are of, in their order."""
    for place, index in enumerate(variables):
        yield Source((index,), "unchanged", (variables, place))
    for place, index in enumerate(variables):
        yield Source((index,), "not_finite", (variables, place))
    yield Source(variables, "compared", (variables, len(variables)))


def _of_replica(frame: Frame, replica: int) -> list[marks.Held]:
    """What the step held on a replica, in the order of the variables: many steps share counters."""
    held = [each for each in (frame.before or {}).values() if each.replica == replica]
    return sorted(held, key=lambda each: each.variable)


def _copies(variable: Any, frame: Frame) -> Iterable[tuple[int, Any]]:
    """The copies of a variable that a step reads, with their replicas."""
    own = canonical(variable)
    copies = getattr(own, "values", None)
    if not isinstance(copies, tuple):
        return [(frame.replica, getattr(own, "_v", own))]
    if frame.distributed and compat.replica_id() is None:  # a step of all replicas
        return list(enumerate(copies))
    return [(frame.replica, copies[frame.replica])]
