"""Trees as lines of text that fit a width, with figures. Knows nothing of traces.

What has one child and the same figures is folded into one row, a chain.
"""

from collections import namedtuple
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tracer.layout import Row, Table, cut, wrapped

MIN_NAME = 16  # cells of a name, however deep it is
MIN_NAMES = 32  # cells that names keep before other columns go


Node = namedtuple("Node", "names cells note style children begins", defaults=("", "", (), False))
"""A row of a tree, with its `children`.

`names` are of the chain that it is, one if nothing is folded; each is plain, and of one line. The
`note` stands after them. A node that `begins` has a row of its own even where it could be folded
into its parent."""


def folded(node: Node) -> Node:
    """The node, with what has one child and the same cells as one node with it, at each depth.

    A cell of the child that is empty is the same as any.
    """
    children = tuple(map(folded, node.children))
    if len(children) == 1:
        (child,) = children
        alike = all(mine in ("", cell) for mine, cell in zip(child.cells, node.cells, strict=True))
        if alike and node.note in ("", child.note) and not child.begins:
            names = (*node.names, *child.names)
            return child._replace(names=names, cells=node.cells, begins=node.begins)
    return node._replace(children=children)


def in_order(nodes: Sequence[Any], depth: int = 0) -> Iterator[tuple[int, Any]]:
    """All of what has `children`, as nodes and layers, with depth, each before its children."""
    for node in nodes:
        yield depth, node
        yield from in_order(node.children, depth + 1)


@dataclass(kw_only=True)
class Tree(Table):
    """A table of the first `most` nodes of trees, drawn in the column of the names.

    The names of a chain are joined by `joint`, in several lines where one is too short.
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
    """The names of a chain, and the note, as they can be parted at the ends of lines."""
    first, *names = node.names
    words = [first, *(joint + name for name in names)]
    return [*words[:-1], f"{words[-1]}:", f" {node.note}"] if node.note else words


def _drawn(nodes: Sequence[Node], joint: str, room: int, above: str | None = None) -> Iterator[str]:
    """The names of each node under the guides `above` it; None for the roots, which have none."""
    for node in nodes:
        guide = below = ""
        if above is not None:
            guides = ("└── ", "    ") if node is nodes[-1] else ("├── ", "│   ")
            guide, below = (above + each for each in guides)
        size = max(MIN_NAME, room - len(guide))
        words = [cut(word, size, size // 2) for word in _words(node, joint)]
        yield guide + f"\n{below}".join(wrapped(words, size))
        yield from _drawn(node.children, joint, room, below)
