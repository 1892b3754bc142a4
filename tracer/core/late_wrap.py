"""What ran in functions and graphs that were traced before the tracer came: by their names."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tracer.kinds import OptimizerKind
from tracer.model.words import listed

SESSION_GRAPH = "v1 graph"
"""What the graph of a Session is called."""


class StaleFunction(NamedTuple):
    """A function of an optimizer that was traced before, by their names."""

    optimizer: int
    """The optimizer's index."""
    function: str
    caller: str = ""
    """The function that was traced since and calls it, or one of those below; empty if the program
    calls it."""


KEPT = "jit"
"""Calls a function that keeps its program, unseen by the tracer."""

PIPELINE = "tf.data"
"""What calls the function of a dataset."""

IN_PART = "in part"
"""Stands for the caller of a function that was being traced when the tracer came."""


class StaleFunctions:
    """How often functions that were traced before were called while their optimizer was traced."""

    reads_again = ""
    """What else is said of a function that was traced again: what it did not go on with."""

    def __init__(self) -> None:
        self.calls: Counter[StaleFunction] = Counter()

    def find_and_watch(
        self, index: int, optimizer: Any, kind: OptimizerKind, name: str, own: bool, retrace: bool
    ) -> None:
        """Find what uses an optimizer uncounted, and watch that from now on.

        If `retrace`, the functions that use it are to be traced again. `own` says whether its step
        method may update variables by itself.
        """

    def begin(self, index: int) -> None:
        """What is traced from now on with an optimizer is counted, until it is let go."""

    def let_go(self, index: int) -> None:
        """Tracing of an optimizer ends, at least for a while."""

    def unseen(self) -> list[StaleFunction]:
        """The functions that run uncounted, or partly so, and whose calls are not seen."""
        return []

    def retraced(self) -> Counter[StaleFunction]:
        """The functions that were traced again since they forgot their graphs."""
        return Counter()

    def missed(self, names: Sequence[str], before: Mapping[StaleFunction, int]) -> Iterator[str]:
        """Notes on what was not counted; `before` is how often each had been called already."""
        calls = Counter(self.calls)
        calls.subtract(before)
        for stale in dict.fromkeys([*(+calls), *self.unseen()]):
            yield note_of(stale, names[stale.optimizer], max(1, calls[stale]))

    def remarks(self, names: Sequence[str], before: Mapping[StaleFunction, int]) -> Iterator[str]:
        """What is said of functions that were traced again for the tracer, for each optimizer.

        `before` is how many of each name there were already.
        """
        again = Counter(self.retraced())
        again.subtract(before)
        for index, name in enumerate(names):
            functions = outermost(each.function for each in (+again) if each.optimizer == index)
            if functions:
                yield (
                    f"{name}: {listed(functions)}, traced before the tracer came, "
                    f"{'was' if len(functions) == 1 else 'were'} traced again for it"
                    f"{self.reads_again}"
                )


def outermost(names: Iterable[str]) -> list[str]:
    """The names of functions, each once, without those of functions inside another one of them.

    >>> outermost(["train/step", "train", "test"])
    ['test', 'train']
    """
    known = set(names)
    return sorted(
        name for name in known if not any(name.startswith(f"{other}/") for other in known)
    )


def note_of(stale: StaleFunction, name: str, calls: int) -> str:
    """What a trace says of `calls` of a function of the optimizer `name`."""
    of_session = stale.function == SESSION_GRAPH and not stale.caller
    text = _NOTES.get(SESSION_GRAPH if of_session else stale.caller, _CALLED_BY)
    return f"{name}: " + text.format(
        function=repr(stale.function),
        caller=repr(stale.caller),
        calls="1 call" if calls == 1 else f"{calls:,} calls",
        are="is" if calls == 1 else "are",
    )


_NOTES = {
    "": "{calls} of {function}, a function traced before the tracer came, {are} not counted; "
    "wrap the optimizer before it trains",
    KEPT: "{function} was traced before the tracer came and keeps its program: what runs in it is "
    "not counted; wrap the optimizer before it trains",
    PIPELINE: "{function}, which a dataset runs, was traced before the tracer came: what it does "
    "is not counted; wrap the optimizer before the dataset is made",
    IN_PART: "{function} was being traced when the tracer came: what had been traced of it by then "
    "is not counted; wrap the optimizer before it trains",
    SESSION_GRAPH: "a graph of a Session has updates from before the tracer came: what a Session "
    "runs of them is not counted; wrap the optimizer before apply_gradients",
}
_CALLED_BY = (
    "{function}, a function traced before the tracer came, is called by {caller}: what it does "
    "there is not counted; wrap the optimizer before it trains"
)
