"""Finds calls of functions and graphs that were traced before their optimizer was wrapped."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tracer.kinds import OptimizerKind
from tracer.model.words import listed

SESSION_GRAPH = "v1 graph"
"""The name for the graph of a `Session`."""


class StaleFunction(NamedTuple):
    """A stale function: traced before its optimizer was wrapped."""

    optimizer: int
    """The optimizer's index."""
    function: str
    caller: str = ""
    """The later function that calls it, or a constant below; empty if the program calls it."""


KEPT = "jit"
"""The caller of a function that keeps its program; the tracer does not see the calls."""

PIPELINE = "tf.data"
"""The caller of a dataset's function."""

IN_PART = "in part"
"""The caller of a function that was being traced when its optimizer was wrapped."""


class StaleFunctions:
    """Counts the calls of stale functions while their optimizer is traced."""

    reads_again = ""
    """Appended to the remark on functions traced again: the state that they restarted."""

    def __init__(self) -> None:
        self.calls: Counter[StaleFunction] = Counter()

    def find_and_watch(
        self, index: int, optimizer: Any, kind: OptimizerKind, name: str, own: bool, retrace: bool
    ) -> None:
        """Find the stale functions that use an optimizer, watch them from now on, and `begin`.

        If `retrace`, they are traced again at their next call. `own` says whether the optimizer's
        step method may update variables by itself.
        """

    def begin(self, index: int) -> None:
        """Handle the start of tracing an optimizer: functions traced from now on are counted."""

    def let_go(self, index: int) -> None:
        """Handle the end, perhaps temporary, of tracing an optimizer."""

    def unseen(self) -> list[StaleFunction]:
        """The functions that run without being fully counted, and whose calls are not seen."""
        return []

    def retraced(self) -> Counter[StaleFunction]:
        """The functions that were traced again after their graphs were cleared."""
        return Counter()

    def missed(self, names: Sequence[str], before: Mapping[StaleFunction, int]) -> Iterator[str]:
        """Yield notes on uncounted calls; `before` has the earlier calls of each function."""
        calls = Counter(self.calls)
        calls.subtract(before)
        for stale in dict.fromkeys([*(+calls), *self.unseen()]):
            yield note_of(stale, names[stale.optimizer], max(1, calls[stale]))

    def remarks(self, names: Sequence[str], before: Mapping[StaleFunction, int]) -> Iterator[str]:
        """Yield a remark for each optimizer on functions that were traced again for the tracer.

        `before` has the earlier number of such functions of each name.
        """
        again = Counter(self.retraced())
        again.subtract(before)
        for index, name in enumerate(names):
            functions = outermost(each.function for each in (+again) if each.optimizer == index)
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


def note_of(stale: StaleFunction, name: str, calls: int) -> str:
    """The note on `calls` of a stale function of the optimizer `name`."""
    of_session = stale.function == SESSION_GRAPH and not stale.caller
    text = _NOTES.get(SESSION_GRAPH if of_session else stale.caller, _CALLED_BY)
    return f"{name}: " + text.format(
        function=repr(stale.function),
        caller=repr(stale.caller),
        calls="1 call" if calls == 1 else f"{calls:,} calls",
        are="is" if calls == 1 else "are",
    )


_NOTES = {
    "": "{calls} of {function} {are} not counted, because the function was traced before the "
    "optimizer was wrapped; wrap the optimizer before it trains",
    KEPT: "{function} was traced before the optimizer was wrapped, and cannot be traced again: "
    "what runs in it is not counted; wrap the optimizer before it trains",
    PIPELINE: "{function}, which a dataset runs, was traced before the optimizer was wrapped: "
    "what it does is not counted; wrap the optimizer before the dataset is made",
    IN_PART: "{function} was being traced when the optimizer was wrapped: the part that was "
    "traced before is not counted; wrap the optimizer before it trains",
    SESSION_GRAPH: "a graph of a Session has updates that were built before the optimizer was "
    "wrapped: they are not counted; wrap the optimizer before apply_gradients",
}
_CALLED_BY = (
    "{function}, a function traced before the optimizer was wrapped, is called by {caller}: what "
    "it does there is not counted; wrap the optimizer before it trains"
)
