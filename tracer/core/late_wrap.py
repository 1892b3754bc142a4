"""Notes the functions and graphs that were traced before their optimizer was wrapped."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakSet

from tracer.kinds import OptimizerKind
from tracer.model.words import listed

SESSION_GRAPH = "v1 graph"
"""The name for the graph of a `Session`."""


class StaleFunction(NamedTuple):
    """A function traced before its optimizer was wrapped."""

    optimizer: int
    """The optimizer's index."""
    function: str


class Late(NamedTuple):
    """An optimizer that is wrapped, perhaps after it was used."""

    number: int
    """Its index among the optimizers of its recorder."""
    optimizer: Any
    kind: OptimizerKind
    name: str
    own_steps: bool
    """Whether its step method may update variables by itself."""


class StaleFunctions:
    """The functions of a recorder's optimizers that were traced before the optimizers were wrapped.

    Each one that can be is traced again. A call of one that cannot be is noted in the traces of
    that time; if its calls are not seen, it is noted in each trace of a time at which it is alive.
    """

    reads_again = ""
    """Appended to the remark on functions traced again: the state that they restarted."""

    def __init__(self) -> None:
        self.kept: Counter[StaleFunction] = Counter()
        """How often a function was called uncounted, or was found whose calls are not seen."""
        self._alive: dict[StaleFunction, WeakSet[Any]] = defaultdict(WeakSet)

    def find(self, late: Late, retrace: bool) -> None:
        """Find the stale functions of an optimizer whose class is replaced now.

        If `retrace`, they are traced again at their next call.
        """

    def begin(self, index: int, optimizer: Any) -> None:
        """Handle the start of tracing an optimizer: functions traced from now on are counted."""

    def let_go(self, index: int) -> None:
        """Handle the end, perhaps temporary, of tracing an optimizer."""

    def retraced(self) -> Counter[StaleFunction]:
        """The functions that were traced again after their graphs were cleared."""
        return Counter()

    def keep(self, stale: StaleFunction, graph: Any) -> None:
        """Note that a graph may run uncounted and unseen, in each trace while it is alive."""
        if graph not in self._alive[stale]:
            self._alive[stale].add(graph)
            self.kept[stale] += 1

    def past(self) -> dict[StaleFunction, int]:
        """What need not be noted in a trace from now on."""
        return {stale: times for stale, times in self.kept.items() if not self._alive.get(stale)}

    def kept_since(self, past: Mapping[StaleFunction, int]) -> Counter[StaleFunction]:
        """The functions kept at some time after `past` was taken."""
        return self.kept - Counter(past)

    def missed(self, names: Sequence[str], past: Mapping[StaleFunction, int]) -> Iterator[str]:
        """Yield a note on each function kept since `past`."""
        for stale in self.kept_since(past):
            yield (
                f"{names[stale.optimizer]}: {stale.function} was traced before the optimizer was "
                "wrapped, and is not traced again: what it does is not counted; wrap the optimizer "
                "before it trains"
            )

    def remarks(self, names: Sequence[str], before: Mapping[StaleFunction, int]) -> Iterator[str]:
        """Yield a remark for each optimizer on functions that were traced again for the tracer.

        `before` has the earlier number of such functions of each name.
        """
        again = self.retraced() - Counter(before)
        for index, name in enumerate(names):
            functions = outermost(each.function for each in again if each.optimizer == index)
            if functions:
                yield (
                    f"{name}: {listed(functions)}, traced before the optimizer was wrapped, "
                    f"{'was' if len(functions) == 1 else 'were'} traced again{self.reads_again}"
                )


def outermost(names: Iterable[str]) -> list[str]:
    """The distinct names of functions, without functions inside another one of them.

    >>> outermost(["train/step", "train", "test"])
    ['test', 'train']
    """
    known = set(names)
    return sorted(
        name for name in known if not any(name.startswith(f"{other}/") for other in known)
    )
