"""What ran in functions and graphs that were traced before the tracer came: by their names."""

from collections.abc import Iterable
from typing import NamedTuple

SESSION_GRAPH = "v1 graph"
"""What the graph of a Session is called."""


class StaleFunction(NamedTuple):
    """A function of an optimizer that was traced before, by their names."""

    optimizer: int
    """The optimizer's index."""
    function: str
    caller: str = ""
    """The function that was traced since and calls it; empty if the program does, `PIPELINE` if
    tf.data does."""


KEPT = "jit"
"""What calls a function that keeps its program, and of which no call is seen."""

PIPELINE = "tf.data"
"""What calls the function of a dataset."""


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
    if stale.caller == KEPT:
        return (
            f"{name}: {stale.function!r} was traced before the tracer came and keeps its program: "
            "what runs in it is not counted; wrap the optimizer before it trains"
        )
    if stale.caller == PIPELINE:
        return (
            f"{name}: {stale.function!r}, which a dataset runs, was traced before the tracer came: "
            "what it does is not counted; wrap the optimizer before the dataset is made"
        )
    if stale.caller:
        return (
            f"{name}: {stale.function!r}, a function traced before the tracer came, is called by "
            f"{stale.caller!r}: what it does there is not counted; wrap the optimizer before it "
            "trains"
        )
    if stale.function == SESSION_GRAPH:
        return (
            f"{name}: a graph of a Session has updates from before the tracer came: what a Session "
            "runs of them is not counted; wrap the optimizer before apply_gradients"
        )
    times = "1 call" if calls == 1 else f"{calls:,} calls"
    return (
        f"{name}: {times} of {stale.function!r}, a function traced before the tracer came, "
        f"{'is' if calls == 1 else 'are'} not counted; wrap the optimizer before it trains"
    )
