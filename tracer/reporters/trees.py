"""Trees as lines of text that fit a width, with figures beside them. Knows nothing of traces.

What has one child and the same figures is folded into one row, a chain. The tree itself is drawn by
`rich.tree`, and its lines stand as names in a table.
"""

import io
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from tracer.layout import Column, Row, Table, paragraph

_INDENT = 4  # cells of a guide of `rich.tree`
MIN_NAME = 16  # cells of a name, however deep it is
MIN_NAMES = 32  # cells that names keep before other columns go
_GAP = 2  # cells between columns, at least


class Node(NamedTuple):
    """A row of a tree."""

    names: tuple[str, ...]
    """Of the chain that it is, one if nothing is folded; each is plain, and of one line."""
    cells: tuple[str, ...]
    note: str = ""
    """What is said after its name."""
    style: str = ""
    children: tuple["Node", ...] = ()
    begins: bool = False
    """Whether it begins a row of its own, also where it could be folded into what is above it."""


def folded(node: Node) -> Node:
    """The node, with what has one child and the same cells as one node with it, at each depth.

    A cell of the child that is empty is the same as any.
    """
    children = tuple(map(folded, node.children))
    if len(children) == 1:
        (child,) = children
        alike = all(
            of_child in ("", cell) for of_child, cell in zip(child.cells, node.cells, strict=True)
        )
        if alike and node.note in ("", child.note) and not child.begins:
            names = (*node.names, *child.names)
            return child._replace(names=names, cells=node.cells, begins=node.begins)
    return node._replace(children=children)


def in_order(nodes: Sequence[Node], depth: int = 0) -> Iterator[tuple[int, Node]]:
    """All nodes with their depth, each before its children."""
    for node in nodes:
        yield depth, node
        yield from in_order(node.children, depth + 1)


def lines(
    header: str,
    columns: Sequence[Column],
    nodes: Sequence[Node],
    width: int,
    joint: str,
    most: int | None = None,
) -> list[Text]:
    """The trees in at most `width` cells, if the figures leave room for names.

    The names of a chain are joined by `joint`, in several lines where one is too short. With `most`
    the first nodes only are shown.
    """
    rows = list(in_order(nodes))[:most]
    room = _room(columns, [node for _, node in rows], width)
    header = "\n".join(line.plain for line in paragraph(header, room))
    table = Table(header, columns, least=MIN_NAMES)
    labels = [_wrapped(node, max(MIN_NAME, room - _INDENT * depth), joint) for depth, node in rows]
    drawn = iter(_drawn(rows, labels))
    empty = ("",) * len(columns)
    for (_, node), label in zip(rows, labels, strict=True):
        for number in range(len(label)):
            table.rows.append(Row(next(drawn), empty if number else node.cells, style=node.style))
    return table.lines(width)


def _room(columns: Sequence[Column], nodes: Sequence[Node], width: int) -> int:
    """The cells that are left for names, when the columns are gone that the table leaves out."""
    figures = {
        column.drop: 0 for column in sorted(columns, key=lambda column: column.drop, reverse=True)
    }
    for column, *cells in zip(columns, *(node.cells for node in nodes), strict=True):
        texts = (*column.header.split("\n"), *cells)
        figures[column.drop] += _GAP + max(map(cell_len, texts))
    for drop in list(figures):
        if drop and width - sum(figures.values()) < MIN_NAMES:
            del figures[drop]
    return width - sum(figures.values())


def _wrapped(node: Node, room: int, joint: str) -> list[str]:
    """The names of a chain in lines of at most `room` cells, if no name alone is longer."""
    wrapped = [node.names[0]]
    for name in node.names[1:]:
        _add(wrapped, joint, name, room)
    if node.note:
        _add(wrapped, ": ", node.note, room)
    return wrapped


def _add(lines: list[str], joint: str, text: str, room: int) -> None:
    """Add to the last line, or a line if there is no room."""
    joined = lines[-1] + joint + text
    if cell_len(joined) <= room:
        lines[-1] = joined
    elif joint.startswith(" "):
        lines.append(joint.lstrip() + text)
    else:
        lines[-1] += joint.rstrip()
        lines.append(text)


def _drawn(rows: Sequence[tuple[int, Node]], labels: Sequence[Sequence[str]]) -> list[str]:
    """The labels as the lines of trees, with guides."""
    out = io.StringIO()
    longest = max((cell_len(line) for label in labels for line in label), default=0)
    deepest = max((depth for depth, _ in rows), default=0)
    console = Console(
        file=out,
        width=longest + _INDENT * (deepest + 1),
        force_terminal=False,
        color_system=None,
        force_jupyter=False,
        legacy_windows=False,
    )
    branches: list[Tree] = []
    roots: list[Tree] = []
    for (depth, _), label in zip(rows, labels, strict=True):
        text = Text("\n".join(label))
        del branches[depth:]
        if branches:
            branches.append(branches[-1].add(text))
        else:
            branches.append(Tree(text))
            roots.append(branches[0])
    for root in roots:
        console.print(root)
    return [line.rstrip() for line in out.getvalue().split("\n")[:-1]]
