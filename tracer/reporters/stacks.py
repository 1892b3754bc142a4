"""Stacks of calls with their counts, for the formats of the viewers that people have."""

from collections.abc import Iterator

from tracer.errors import shown
from tracer.model import callers
from tracer.model.labels import class_of
from tracer.model.records import Line
from tracer.model.summary import Summary, summaries_of
from tracer.model.trace import Trace
from tracer.reporters import caller_tree

Stack = tuple[tuple[Line, ...], tuple[int, int]]
"""Calls, the outermost first, and what was counted at their end: executions and Python calls."""


def stacks_of(trace: Trace) -> list[tuple[str, list[Stack]]]:
    """The stacks to the apply methods of each optimizer: `Adam`, or `Adam "adam_1"` of several.

    Raises `ValueError` for a trace that knows no callers.
    """
    if not callers.known(trace.data):
        raise ValueError(callers.LACKING)
    summaries = summaries_of(trace)
    roots = [summary.optimizers[0] for summary in summaries]
    names = [f' "{shown(root.name)}"' if len(roots) > 1 else "" for root in roots]
    return [
        (shown(class_of(root)) + name, list(_stacks(summary)))
        for root, name, summary in zip(roots, names, summaries, strict=True)
    ]


def _stacks(summary: Summary) -> Iterator[Stack]:
    """The stacks, whose counts add up to those of the tree."""
    for above, caller in caller_tree.tree(summary).walk():
        executions = caller.executions - sum(each.executions for each in caller.children)
        calls = caller.calls - sum(each.calls for each in caller.children)
        lines = tuple(each.line for each in (*above, caller) if each.line is not None)
        yield lines, (executions, calls)
