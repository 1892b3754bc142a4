"""Who calls the apply methods of an optimizer, as a tree for every report."""

from tracer.errors import shown
from tracer.model import callers
from tracer.model.apply_methods import apply_methods
from tracer.model.callers import Caller
from tracer.model.labels import replica_noun
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
    name = label(caller)
    if caller.line is not None and caller.line.graph and not in_graph:
        in_graph = True
        name += _graphs(caller, summary)
    note = "" if caller.executions or caller.children else "never ran"
    if caller.method:
        of = some(caller.variables, summary.dialect.variable)
        on = (
            f" on {some(caller.replicas, replica_noun(summary.trace))}"
            if caller.replicas > 1
            else ""
        )
        note = f"{note}, {of}{on}" if note else f"{of}{on}"
    is_back = _is_program(caller) and above.line is not None and not _is_program(above)
    headless = above.line is None and caller.line is not None and caller.line.graph
    return Node(
        names=(callers.UNKNOWN.function, name) if headless else (name,),
        cells=(
            f"{caller.executions:,}",
            f"{caller.steps:,}" if has_steps(caller) else "",
            f"{caller.calls:,}",
        ),
        note=note,
        style="" if caller.executions else style,
        children=tuple(_node(each, caller, summary, style, in_graph) for each in caller.children),
        begins=bool(caller.method) or is_back,
    )


def _graphs(caller: Caller, summary: Summary) -> str:
    """`: 2 graphs, 1 never ran` of a function; empty if that is told elsewhere in the tree."""
    graphs, idle = summary.graphs(lambda block: 1, caller.paths)
    never = f", {idle:,} never ran" if idle else ""
    return f": {some(graphs, 'graph')}{never}" if graphs else ""


def has_steps(caller: Caller) -> bool:
    """Whether steps are counted there: not in an apply method, nor in what is a part of a step."""
    return not caller.method and (caller.steps > 0 or not caller.executions)


def _is_program(caller: Caller) -> bool:
    return caller.line is not None and bool(caller.line.file)


def label(caller: Caller) -> str:
    """What it is, on one line: see `tracer.model.callers.label`."""
    return "" if caller.line is None else shown(callers.label(caller.line))
