"""Who calls the apply methods of an optimizer, as a tree for every report."""

from tracer.errors import shown
from tracer.model import callers
from tracer.model.apply_methods import apply_methods
from tracer.model.callers import Caller
from tracer.model.labels import replica_noun
from tracer.model.records import Line
from tracer.model.selection import EXECUTIONS, Selection
from tracer.model.summary import Summary
from tracer.model.wording import listed, some
from tracer.reporters.trees import Node, folded

JOINT = " → "


def tree(summary: Summary) -> Caller:
    """The callers of the methods that the question of the report is about."""
    only = Selection(roles=EXECUTIONS, methods=frozenset(apply_methods(summary)))
    return callers.tree(summary.trace.data, only, summary.root)


def methods(summary: Summary) -> str:
    """The names of these methods, `_resource_apply_dense and _resource_apply_sparse`."""
    return listed([shown(summary.trace.methods[index].name) for index in apply_methods(summary)])


def nodes(summary: Summary, style: str = "") -> list[Node]:
    """The tree with executions, steps and Python calls, chains folded; `style` is of what is odd.

    A row begins where the framework calls the program back, and with the method. Of a graph that
    begins a path it is said that nobody knows who ran it.
    """
    whole = tree(summary)
    return [folded(_node(each, whole, summary, style)) for each in whole.children]


def _node(
    caller: Caller, above: Caller, summary: Summary, style: str, in_graph: bool = False
) -> Node:
    line, before = caller.line or Line(""), above.line
    name = label(caller) + (_graphs(caller, summary) if line.graph and not in_graph else "")
    never = "" if caller.executions or caller.children else "never ran"
    of = some(caller.variables, summary.dialect.variable) if caller.method else ""
    if of and caller.replicas > 1:
        of += f" on {some(caller.replicas, replica_noun(summary.trace))}"
    below = [
        _node(each, caller, summary, style, in_graph or line.graph) for each in caller.children
    ]
    return Node(
        names=(callers.UNKNOWN.function, name) if line.graph and before is None else (name,),
        cells=(
            f"{caller.executions:,}",
            f"{caller.steps:,}" if has_steps(caller) else "",
            f"{caller.calls:,}",
        ),
        note=", ".join(filter(None, (never, of))),
        style="" if caller.executions else style,
        children=tuple(below),
        begins=bool(caller.method) or bool(line.file and before and not before.file),
    )


def _graphs(caller: Caller, summary: Summary) -> str:
    """`: 2 graphs, 1 never ran`; empty for a function whose graphs are counted elsewhere."""
    graphs, idle = summary.graphs(lambda block: 1, caller.paths)
    never = f", {idle:,} never ran" if idle else ""
    return f": {some(graphs, 'graph')}{never}" if graphs else ""


def has_steps(caller: Caller) -> bool:
    """Whether steps are counted there: not in an apply method, nor in what is a part of a step."""
    return not caller.method and (caller.steps > 0 or not caller.executions)


def label(caller: Caller) -> str:
    """What it is, on one line: see `tracer.model.callers.label`."""
    return "" if caller.line is None else shown(callers.label(caller.line))
