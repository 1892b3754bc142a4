"""Record the effects of steps on variables, if this was requested.

An outer step is compared as a whole: each variable of the outermost step method is read when the
step begins and again when it ends (`comparisons`). So weight decay, constraints and averages
outside the apply methods count too. The answers are bits. A step in a graph writes them to a
journal (`ledger.Journal`), which is drained into the same logs as the bits of steps in eager mode.

The first value is held until the step ends, so ops that write to the variable in place must copy
it: this costs memory, but never changes the result.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any

from tracer.backends.tensorflow import comparisons, compat
from tracer.backends.tensorflow.ledger import Journal, Ledger
from tracer.backends.tensorflow.variables import canonical
from tracer.core.calls import Step
from tracer.core.counters import Source
from tracer.core.effects import Logs, sources_of
from tracer.core.log import Reading
from tracer.core.stamps import flags_of


class Effects(Logs):
    """The effects of one root optimizer's steps on each replica; thread-safe.

    The caller must hold the lock of the counters where a comment says so.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        """`note` is called with a text about each variable that cannot be compared."""
        super().__init__()
        self._note = note
        self._journals: dict[tuple[int, tuple[int, ...]], Journal] = {}
        """By replica and variables of a step: several graphs may share one."""

    def hold(self, call: Step, index: int, variable: Any) -> None:
        """Read a variable before the step `call` changes it."""
        if not compat.eager_outside_functions():
            self._note(
                "effects are unknown in the graph of a Session: its variables are not compared"
            )
            return
        graph = call.place.graph
        with compat.outside_of_graphs() if graph is None else graph.as_default():
            self._hold(call, index, variable)

    def _hold(self, call: Step, index: int, variable: Any) -> None:
        held = call.before
        if held is None:
            held = call.before = {}
        for replica, own in _copies(variable, call):
            if not isinstance(own, compat.ResourceVariable) or not comparisons.comparable(own):
                self._note(
                    "effects are unknown for a variable of the type "
                    f"{getattr(own.dtype, 'name', own.dtype)} and the shape {own.shape} "
                    f"({type(own).__name__}): it is not compared"
                )
            elif id(own.handle) not in held:
                value = comparisons.read(own)
                held[id(own.handle)] = comparisons.Held(index, replica, own, value)

    # A step has ended and its block is counted; on the thread that made the call.

    def count(self, call: Step, replica: int, ledger: Ledger, stamp: Any, work: Any) -> None:
        """Add the comparison of a step to the current graph, after its updates, the ops `work`."""
        held = _of_replica(call, replica)
        variables = tuple(each.variable for each in held)
        with compat.control_dependencies(work):
            row = comparisons.row(stamp, comparisons.questions(held))
        journal = self._journals.get((replica, variables))
        if journal is None:
            taken_out = partial(self._taken_out, replica, variables)
            journal = ledger.auxiliary(taken_out, int(row.shape[0]))
            journal = self._journals.setdefault((replica, variables), journal)
        journal.write(row, work)

    def _taken_out(self, replica: int, variables: tuple[int, ...], row: list[int]) -> None:
        """Log a drained row; an inner step is compared by its outer step."""
        stamp, *words = row
        if not flags_of(stamp):
            self.log(replica, _sources(variables, tuple(words)), stamp)

    def seen(self, call: Step, replica: int) -> list[Source]:
        """What to log of a step in eager mode."""
        held = _of_replica(call, replica)
        variables = tuple(each.variable for each in held)
        return sources_of(variables, map(bool, comparisons.questions(held)))

    # The caller holds the lock of the counters.

    def read(self, replica: int, last: int) -> dict[Source, Reading]:
        """The effects on a replica, of the steps up to `last`."""
        readings = super().read(replica, last)
        for (of, variables), journal in list(self._journals.items()):
            if of == replica and journal.lost:
                source = Source(variables, "compared")
                known = readings.get(source, Reading())
                readings[source] = known._replace(lost=known.lost + journal.lost)
        return readings


@lru_cache(maxsize=256)
def _sources(variables: tuple[int, ...], words: tuple[int, ...]) -> list[Source]:
    """What to log of a step; cached, because most steps are alike."""
    return sources_of(variables, comparisons.bits_of(words))


def _of_replica(call: Step, replica: int) -> list[comparisons.Held]:
    """The variables that a step read on a replica, sorted, so that steps share journals."""
    held = [each for each in (call.before or {}).values() if each.replica == replica]
    return sorted(held, key=lambda each: each.variable)


def _copies(variable: Any, call: Step) -> Iterable[tuple[int, Any]]:
    """The copies of a variable that a step reads, with their replicas."""
    own = canonical(variable)
    copies = getattr(own, "values", None)
    if not isinstance(copies, tuple):
        return [(call.replica, getattr(own, "_v", own))]
    if call.distributed and compat.replica_id() is None:  # a step of all replicas
        return list(enumerate(copies))
    return [(call.replica, copies[call.replica])]
