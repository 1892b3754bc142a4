"""Stacks of calls with their counts, for the formats of the viewers that people have."""

from collections.abc import Iterator

from tracer.errors import Mistake, shown
from tracer.model import callers
from tracer.model.callers import Caller
from tracer.model.labels import class_of
from tracer.model.records import Line
from tracer.model.summary import summaries_of
from tracer.model.trace import Trace
from tracer.reporters import caller_tree

Stack = tuple[tuple[Line, ...], tuple[int, int]]
"""Calls, the outermost first, and what was counted at their end: executions and Python calls."""


def stacks_of(trace: Trace) -> list[tuple[str, list[Stack]]]:
    """The stacks to the apply methods of each optimizer: `Adam`, or `Adam "adam_1"` of several.

    Raises `tracer.errors.Mistake` for a trace that knows no callers.
    """
    if not callers.known(trace.data):
        raise Mistake(callers.LACKING)
    summaries = summaries_of(trace)
    roots = [summary.optimizers[0] for summary in summaries]
    names = [f' "{shown(root.name)}"' if len(roots) > 1 else "" for root in roots]
    return [
        (shown(class_of(root)) + name, list(_stacks(caller_tree.tree(summary))))
        for root, name, summary in zip(roots, names, summaries, strict=True)
    ]


def _stacks(caller: Caller, above: tuple[Line, ...] = ()) -> Iterator[Stack]:
    """The stacks below a caller, whose counts add up to those of the tree."""
    for each in caller.children:
        lines = (*above, each.line or callers.UNKNOWN)
        executions = each.executions - sum(child.executions for child in each.children)
        calls = each.calls - sum(child.calls for child in each.children)
        yield lines, (executions, calls)
        yield from _stacks(each, lines)
