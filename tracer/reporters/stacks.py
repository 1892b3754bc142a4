"""Stacks of calls with their counts, for the formats of the viewers that people have."""

from collections.abc import Iterator
from typing import NamedTuple

from tracer.errors import shown
from tracer.model.callers import Caller
from tracer.model.labels import class_of
from tracer.model.records import Line
from tracer.model.summary import Summary, summaries_of
from tracer.model.trace import Trace
from tracer.reporters import caller_tree


class Stack(NamedTuple):
    """A stack of calls, the outermost first, and what was counted at its end."""

    frames: tuple[Line, ...]
    executions: int
    calls: int


def stacks(summary: Summary) -> Iterator[Stack]:
    """The stacks to the apply methods of an optimizer; their counts add up to those of its tree."""
    for above, caller in caller_tree.tree(summary).walk():
        executions = caller.executions - sum(each.executions for each in caller.children)
        calls = caller.calls - sum(each.calls for each in caller.children)
        if executions or calls:
            yield Stack(tuple(map(_line, (*above, caller))), executions, calls)


def _line(caller: Caller) -> Line:
    assert caller.line is not None  # only the root, which stands for the run, has none
    return caller.line


def optimizer_names(trace: Trace) -> list[tuple[Summary, str]]:
    """The optimizers with a name for each: `Adam`, or `Adam "adam_1"` if there are several."""
    summaries = summaries_of(trace)
    roots = [summary.optimizers[0] for summary in summaries]
    several = len(roots) > 1
    names = [
        shown(class_of(each)) + (f' "{shown(each.name)}"' if several else "") for each in roots
    ]
    return list(zip(summaries, names, strict=True))
