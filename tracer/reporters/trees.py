"""The callers of apply methods, and the updates of each layer, as trees for all reports.

A node with one child and the same figures is folded with it into one row, a chain.
"""

import re
from collections import Counter, namedtuple
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any

from tracer.errors import shown
from tracer.layout import Row, Table, cut, wrapped
from tracer.model import callers, measures
from tracer.model.phrases import replica_noun
from tracer.model.records import Line
from tracer.model.summary import Summary
from tracer.model.words import dash, first_of, listed, some

MIN_NAME = 16  # least cells of a name, however deep it is
MIN_NAMES = 32  # cells of names before other columns are dropped


Node = namedtuple("Node", "names cells note style children begins", defaults=("", "", (), False))
"""A row of a tree, with its `children`.

`names` are the names in its chain, one if nothing is folded; each is plain text on one line. The
`note` follows them. A node that `begins` is never folded into its parent.
"""


def chained(node: Node) -> Node:
    """The node, with each node that has one child and the same cells folded with it, at any depth.

    An empty cell of the child equals any cell.
    """
    children = tuple(map(chained, node.children))
    if len(children) == 1:
        (child,) = children
        alike = all(
            below in ("", cell) for below, cell in zip(child.cells, node.cells, strict=True)
        )
        if alike and node.note in ("", child.note) and not child.begins:
            names = (*node.names, *child.names)
            return child._replace(names=names, cells=node.cells, begins=node.begins)
    return node._replace(children=children)


def in_order(nodes: Sequence[Any], depth: int = 0) -> Iterator[tuple[int, Any]]:
    """All nodes (anything with `children`), depth first, each with its depth."""
    for node in nodes:
        yield depth, node
        yield from in_order(node.children, depth + 1)


@dataclass(kw_only=True)
class Tree(Table):
    """A table of the first `most` nodes of trees, drawn in the column of names.

    `joint` joins the names of a chain, which wraps if it does not fit on one line.
    """

    nodes: Sequence[Node]
    joint: str
    most: int
    least: int = MIN_NAMES

    def __post_init__(self) -> None:
        """Make a row of each node."""
        shown = islice(in_order(self.nodes), self.most)
        self.rows = [
            Row("".join(_words(node, self.joint)), node.cells, style=node.style)
            for _, node in shown
        ]

    def names(self, room: int) -> Sequence[str]:
        """The names as the lines of trees, with guides."""
        return list(islice(_drawn(self.nodes, self.joint, room), self.most))


def _words(node: Node, joint: str) -> list[str]:
    """The names of a chain, and the note, as words that may wrap."""
    first, *names = node.names
    words = [first, *(joint + name for name in names)]
    return [*words[:-1], f"{words[-1]}:", f" {node.note}"] if node.note else words


def _drawn(nodes: Sequence[Node], joint: str, room: int, above: str | None = None) -> Iterator[str]:
    """The names of each node with the guides `above` it; None for roots, which have none."""
    for node in nodes:
        guide = below = ""
        if above is not None:
            guides = ("└── ", "    ") if node is nodes[-1] else ("├── ", "│   ")
            guide, below = (above + each for each in guides)
        size = max(MIN_NAME, room - len(guide))
        words = [cut(word, size, size // 2) for word in _words(node, joint)]
        yield guide + f"\n{below}".join(wrapped(words, size))
        yield from _drawn(node.children, joint, room, below)


# Layers: variables folded by the path in their names.

MIN_ALIKE = 3
"""This many similar layers in a row, which differ only in their number, share one row."""
MAX_NAMES = 3
"""At most this many variables are named in the row of a layer."""
_NUMBER = re.compile(r"_?\d+$")


@dataclass(frozen=True)
class Layer:
    """A layer, or one variable, which has no children."""

    path: str = field(compare=False)
    """Its name with the names of all outer layers."""
    name: str
    updates: Counter[tuple[int, int]]
    """How many of its variables have how many dense and sparse updates."""
    children: tuple["Layer", ...]

    def counts(self) -> tuple[int, int, int, int, int]:
        """Its variables, how many were never updated, and the updates: total, dense and sparse."""
        dense = sum(number * each for (each, _), number in self.updates.items())
        sparse = sum(number * each for (_, each), number in self.updates.items())
        return self.updates.total(), self.updates[0, 0], dense + sparse, dense, sparse


def layers_of(summary: Summary) -> Layer:
    """The layers of an optimizer's variables, in the order of the variables."""
    variables = {
        index: (summary.trace.variables[index].name.split(summary.dialect.separator), counts)
        for pattern in summary.patterns
        for counts in [(pattern.total(measures.dense), pattern.total(measures.sparse))]
        for index in pattern.variables
    }
    return _layer([], [variables[index] for index in summary.variables], summary.dialect.separator)


def _layer(
    path: list[str], members: list[tuple[list[str], tuple[int, int]]], separator: str
) -> Layer:
    """The layer at a path, with its `members`: paths of variables, and their updates."""
    depth = len(path)
    below: dict[tuple[str, int], list[tuple[list[str], tuple[int, int]]]] = {}
    for number, member in enumerate(members):
        if rest := member[0][depth:]:  # a layer and variables may share a name
            below.setdefault((rest[0], number if len(rest) == 1 else -1), []).append(member)
    return Layer(
        separator.join(path),
        path[-1] if path else "",
        Counter(updates for _, updates in members),
        tuple(_layer([*path, name], each, separator) for (name, _), each in below.items()),
    )


def layer_nodes(summary: Summary, odd: str = "", wrong: str = "") -> list[Node]:
    """The tree with variables, updates, updates of each, dense and sparse; similar layers folded.

    `odd` and `wrong` are the styles of layers with some, or only, never updated variables.
    """
    layers = _together(layers_of(summary).children)
    return [chained(_layer_node(*each, odd, wrong)) for each in layers]


def _layer_node(layer: Layer, name: str, alike: int, odd: str, wrong: str, times: int = 1) -> Node:
    """A layer with its children; with the total counts if it stands for several similar layers."""
    times *= alike
    variables, never, updates, dense, sparse = (times * count for count in layer.counts())
    notes = [f"{alike:,} alike"] if alike > 1 else []
    if never:
        notes.append(f"{never:,} never updated" if never < variables else "never updated")
    children = [_layer_node(*each, odd, wrong, times) for each in _together(layer.children)]
    even = len({frozenset(each.updates.items()) for each in layer.children}) == 1
    if len(layer.children) > 1 and even and not any(each.children for each in layer.children):
        notes.append(first_of([shown(each.name) or "''" for each in layer.children], MAX_NAMES))
        children = []
    of_each = [sum(each) for each in layer.updates]
    return Node(
        names=(name,),
        cells=(
            f"{variables:,}",
            f"{updates:,}",
            dash(min(of_each), max(of_each)),
            f"{dense:,}",
            f"{sparse:,}",
        ),
        note="; ".join(notes),
        style=(wrong if never == variables else odd) if never else "",
        children=tuple(children),
    )


def _together(layers: Sequence[Layer]) -> Iterator[tuple[Layer, str, int]]:
    """The layers, similar ones in a row folded: each with its name and how many it stands for."""
    for _, group in groupby(layers, _shape):
        alike = list(group)
        if len(alike) < MIN_ALIKE or not alike[0].children:
            yield from ((each, shown(each.name) or "''", 1) for each in alike)
        else:
            name = f"{shown(alike[0].name)} … {shown(alike[-1].name)}"
            yield alike[0], name, len(alike)


def _shape(layer: Layer) -> tuple[object, ...]:
    """A key that is equal for layers that differ only in their number."""
    return _NUMBER.sub("", layer.name), layer.updates, layer.children


# Callers of the apply methods.

JOINT = " → "


def callers_of(summary: Summary) -> callers.Caller:
    """The callers of the methods in the report's question."""
    only = measures.Selection(roles=measures.EXECUTIONS, methods=frozenset(summary.apply_methods))
    return callers.tree(summary.trace.data, only, summary.root)


def method_names(summary: Summary) -> str:
    """The names of these methods: `_resource_apply_dense and _resource_apply_sparse`."""
    return listed([shown(summary.trace.methods[index].name) for index in summary.apply_methods])


def caller_nodes(summary: Summary, style: str = "") -> list[Node]:
    """The tree with executions, steps and Python calls, chains folded; `style` is for odd rows.

    A row begins where the framework calls back into the program, and with the method. A path that
    begins with a graph is marked as having an unknown caller.
    """
    whole = callers_of(summary)
    return [chained(_caller_node(each, whole, summary, style)) for each in whole.children]


def _caller_node(
    caller: callers.Caller,
    above: callers.Caller,
    summary: Summary,
    style: str,
    in_graph: bool = False,
) -> Node:
    line, before = caller.line or Line(""), above.line
    name = caller_label(caller) + (_graphs(caller, summary) if line.graph and not in_graph else "")
    never = "" if caller.executions or caller.children else "never ran"
    of = some(caller.variables, summary.dialect.variable) if caller.method else ""
    if of and caller.replicas > 1:
        of += f" on {some(caller.replicas, replica_noun(summary.trace))}"
    below = [
        _caller_node(each, caller, summary, style, in_graph or line.graph)
        for each in caller.children
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


def _graphs(caller: callers.Caller, summary: Summary) -> str:
    """`: 2 graphs, 1 never ran`; empty for a function whose graphs are counted elsewhere."""
    graphs, idle = summary.graphs(lambda block: 1, caller.paths)
    never = f", {idle:,} never ran" if idle else ""
    return f": {some(graphs, 'graph')}{never}" if graphs else ""


def has_steps(caller: callers.Caller) -> bool:
    """True if steps are counted here: not in an apply method, nor in a part of a step."""
    return not caller.method and (caller.steps > 0 or not caller.executions)


def caller_label(caller: callers.Caller) -> str:
    """The caller on one line: see `tracer.model.callers.label`."""
    return "" if caller.line is None else shown(callers.label(caller.line))
