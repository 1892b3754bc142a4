"""What the steps of one root optimizer did to the variables: only where this was asked for.

A step is compared as a whole. Each variable that the outermost step method is handed is read when
the step begins, and once more when it has ended (`comparisons`): so what weight decay, a constraint
or an average overwrites beside the apply methods counts too. The answers are bits. Those that a
step in a graph sets are counted in the graph, with their steps (`ledger.RunCounters`); those of one
in eager mode in a log.

The value from the beginning is held until the end, so what writes to the variable in place has to
copy it: that costs memory, never the result.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tracer.backends.tensorflow import comparisons, compat
from tracer.backends.tensorflow.ledger import ROWS, RunCounters, named
from tracer.backends.tensorflow.variables import canonical
from tracer.core.calls import Frame
from tracer.core.counters import Source
from tracer.core.effects import Logs, sources_of
from tracer.core.log import Reading, reading_of, until
from tracer.model.runs import Run

_FEWEST_ROWS = 64
"""How many runs of a bit may end between two readings, at least; more where there are few bits."""


class Effects(Logs):
    """What was compared on each replica; thread-safe, if the lock of the counters is held where it
    says so.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        """`note` is called with what could not be compared."""
        super().__init__()
        self._note = note
        self._counters: dict[tuple[int, tuple[int, ...]], RunCounters] = {}
        """By replica and the variables of a step: steps of several graphs may share them."""

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
            if not isinstance(own, compat.ResourceVariable) or not comparisons.comparable(own):
                self._note(
                    f"effects on a variable of the type {getattr(own.dtype, 'name', own.dtype)} "
                    f"and the shape {own.shape} ({type(own).__name__}) are not known: it is not "
                    "compared"
                )
            elif id(own.handle) not in held:
                held[id(own.handle)] = comparisons.hold(index, replica, own)

    # A step has ended, which a block counts; on the thread that made the call.

    def count(
        self, frame: Frame, replica: int, device: str, stamp: Any, work: Sequence[Any]
    ) -> None:
        """Add the count to the current graph, in which the ops `work` are the updates."""
        held = _of_replica(frame, replica)
        key = replica, tuple(each.variable for each in held)
        with compat.control_dependencies(work):
            bits = comparisons.questions(held)
        counters = self._counters.get(key)
        if counters is None:
            rows = max(_FEWEST_ROWS, ROWS // len(bits))
            counters = self._counters.setdefault(key, RunCounters(device, rows, len(bits)))
        counters.advance(stamp, bits, work)

    def seen(self, frame: Frame, replica: int) -> list[Source]:
        """What is to be logged of a step in eager mode."""
        held = _of_replica(frame, replica)
        variables = tuple(each.variable for each in held)
        bits = [bool(each) for each in comparisons.questions(held)]
        return sources_of(variables, bits[: len(held)], bits[len(held) : -1])

    # The lock of the counters is held by whoever calls these.

    def read(self, replica: int, begun: int) -> dict[Source, Reading]:
        """What was counted on a replica, of the steps up to `begun`."""
        readings = super().read(replica, begun)
        with compat.outside_of_graphs():
            for (of, variables), counters in list(self._counters.items()):
                if of == replica:
                    states = counters.states()
                    runs = counters.runs(states)
                    for source, each, state in zip(_sources(variables), runs, states, strict=True):
                        readings[source] = until(_reading(each, state.total), begun)
        return readings

    def children(self) -> dict[str, Any]:
        """What an exported function captures, by name."""
        return {
            f"effects_{name}": variable
            for number, counters in enumerate(list(self._counters.values()))
            for name, variable in named(counters, number).items()
        }


def _reading(runs: Sequence[Run], total: int) -> Reading:
    """What a bit says of the steps that are part of no other; a part is compared by its whole."""
    reading = reading_of(runs, total, 0, 0)
    own = reading.runs.get(0, ())
    return Reading({0: own} if own else {}, {}, reading.lost + sum(reading.outside.values()))


def _sources(variables: tuple[int, ...]) -> Iterable[Source]:
    """What the counters of a step are of, in their order."""
    for place, index in enumerate(variables):
        yield Source((index,), "unchanged", (variables, place))
    for place, index in enumerate(variables):
        yield Source((index,), "not_finite", (variables, place))
    yield Source(variables, "compared", (variables, len(variables)))


def _of_replica(frame: Frame, replica: int) -> list[comparisons.Held]:
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
