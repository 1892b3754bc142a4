"""Stacks of calls with their counts, for the formats of the viewers that people have."""

from collections.abc import Iterator
from typing import NamedTuple

from tracer.errors import shown
from tracer.model import callers
from tracer.model.labels import class_of
from tracer.model.records import Line
from tracer.model.summary import Summary, summaries_of
from tracer.model.trace import Trace
from tracer.reporters import caller_tree


class Stack(NamedTuple):
    """A stack of calls, the outermost first, and what was counted at its end."""

    frames: tuple[Line, ...]
    counts: tuple[int, int]
    """The executions and the Python calls."""


def stacks_of(trace: Trace) -> list[tuple[str, list[Stack]]]:
    """The stacks to the apply methods of each optimizer: `Adam`, or `Adam "adam_1"` of several.

    Raises `ValueError` for a trace that knows no callers.
    """
    if not callers.known(trace.data):
        raise ValueError(callers.LACKING)
    summaries = summaries_of(trace)
    found = []
    for summary in summaries:
        root = summary.optimizers[0]
        name = f' "{shown(root.name)}"' if len(summaries) > 1 else ""
        found.append((shown(class_of(root)) + name, list(_stacks(summary))))
    return found


def _stacks(summary: Summary) -> Iterator[Stack]:
    """The stacks, whose counts add up to those of the tree."""
    for above, caller in caller_tree.tree(summary).walk():
        executions = caller.executions - sum(each.executions for each in caller.children)
        calls = caller.calls - sum(each.calls for each in caller.children)
        frames = tuple(each.line for each in (*above, caller) if each.line is not None)
        yield Stack(frames, (executions, calls))
