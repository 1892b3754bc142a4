"""Graph tracings as events, in order of time, for the page and JSON."""

from collections import namedtuple

from tracer.errors import shown
from tracer.model import callers
from tracer.model.trace import Trace

CAUSES = {
    "first": "the first call",
    "variables": "variables were made in the first call",
    "argument": "another argument",
    "value": "another Python value",
    "function": "a new function object",
    "forgotten": "its graphs were forgotten: wrapped late, or compiled anew",
    "unknown": "not known",
}


TracingRow = namedtuple("TracingRow", "began after graph cause caller seconds")
"""One graph tracing, which `began` so many seconds after the first of the trace.

`after` is how many steps had run. `caller` is the line of the program that is nearest to it; empty
if it is not known."""


def tracings(trace: Trace, root: int | None = None) -> list[TracingRow]:
    """The graph tracings of one root optimizer or of all, the earliest first."""
    events = sorted(trace.graph_tracings, key=lambda each: each.at)
    rows = []
    for each in events:
        line = callers.nearest(trace.data, each.path)
        row = TracingRow(
            began=round(each.at - events[0].at, 3),
            after=each.after,
            graph=shown(trace.graphs[each.graph].function),
            cause=CAUSES[each.cause] + (f": {shown(each.detail)}" if each.detail else ""),
            caller="" if line is None else shown(callers.label(line)),
            seconds=round(each.seconds, 3),
        )
        if root is None or trace.graphs[each.graph].root == root:
            rows.append(row)
    return rows
