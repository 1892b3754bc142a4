"""The updates of each layer: variables folded by the path in their names, for every report."""

import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from tracer.errors import shown
from tracer.model import measures
from tracer.model.summary import Summary
from tracer.model.wording import dash
from tracer.reporters.trees import Node, folded

MIN_ALIKE = 3
"""So many layers in a row that count the same, and differ in their number alone, are one row."""
MAX_NAMES = 3
"""So many variables are named in the row of a layer."""
_NUMBER = re.compile(r"_?\d+$")


@dataclass
class Layer:
    """A layer, or one variable of it."""

    name: str
    is_variable: bool = False
    variables: int = 0
    never: int = 0
    """How many of the variables were never updated."""
    dense: int = 0
    sparse: int = 0
    least: int | None = None
    """The fewest updates of one of its variables."""
    most: int = 0
    children: list["Layer"] = field(default_factory=list)

    @property
    def updates(self) -> int:
        return self.dense + self.sparse

    def add(self, other: "Layer") -> None:
        """Count what is of another one, too."""
        self.variables += other.variables
        self.never += other.never
        self.dense += other.dense
        self.sparse += other.sparse
        least = [each for each in (self.least, other.least) if each is not None]
        self.least = min(least, default=None)
        self.most = max(self.most, other.most)

    def counts(self) -> tuple[int, int, int, int]:
        return self.variables, self.never, self.dense, self.sparse

    def walk(
        self, joint: str, path: str = "", depth: int = 0
    ) -> Iterator[tuple[int, str, "Layer"]]:
        """All that is below it, with depth and path, each before what it holds."""
        for child in self.children:
            below = f"{path}{joint if depth else ''}{child.name}"
            yield depth, below, child
            yield from child.walk(joint, below, depth + 1)


def tree(summary: Summary) -> Layer:
    """The layers of an optimizer's variables, in the order of the variables."""
    whole = Layer("")
    known: dict[tuple[str, ...], Layer] = {(): whole}
    updates = _updates(summary)
    joint = summary.dialect.separator
    for index in summary.variables:
        *path, last = summary.trace.variables[index].name.split(joint)
        dense, sparse = updates.get(index, (0, 0))
        both = dense + sparse
        variable = Layer(last, True, 1, int(not both), dense, sparse, both, both)
        whole.add(variable)
        above = whole
        for size in range(1, len(path) + 1):
            key = tuple(path[:size])
            if key not in known:
                known[key] = Layer(key[-1])
                above.children.append(known[key])
            above = known[key]
            above.add(variable)
        above.children.append(variable)
    return whole


def _updates(summary: Summary) -> dict[int, tuple[int, int]]:
    """The dense and the sparse updates of each variable."""
    updates = {}
    for pattern in summary.patterns:
        counts = pattern.total(measures.dense), pattern.total(measures.sparse)
        updates.update(dict.fromkeys(pattern.variables, counts))
    return updates


def nodes(summary: Summary, odd: str = "", wrong: str = "") -> list[Node]:
    """The tree with variables, updates, updates of each, dense and sparse; what is alike folded.

    `odd` and `wrong` are the styles of layers of which some, or all, variables were never updated.
    """
    return [folded(_node(*each, odd, wrong)) for each in _together(tree(summary).children)]


def _node(layer: Layer, name: str, alike: int, odd: str, wrong: str) -> Node:
    notes = [f"{alike:,} alike"] if alike > 1 else []
    if layer.never == layer.variables:
        notes.append("never updated")
    elif layer.never:
        notes.append(f"{layer.never:,} never updated")
    children = [_node(*each, odd, wrong) for each in _together(layer.children)]
    if len(layer.children) > 1 and _is_even(layer.children):
        first = [shown(each.name) or "''" for each in layer.children[:MAX_NAMES]]
        rest = len(layer.children) - len(first)
        notes.append(", ".join(first) + (f" and {rest:,} more" if rest else ""))
        children = []
    least, most = layer.least or 0, layer.most
    return Node(
        names=(name,),
        cells=(
            f"{layer.variables:,}",
            f"{layer.updates:,}",
            dash(least, most),
            f"{layer.dense:,}",
            f"{layer.sparse:,}",
        ),
        note="; ".join(notes),
        style=wrong if layer.never == layer.variables else odd if layer.never else "",
        children=tuple(children),
    )


def _is_even(layers: Sequence[Layer]) -> bool:
    """Whether all are variables that count the same."""
    return all(each.is_variable for each in layers) and len({each.counts() for each in layers}) == 1


def _together(layers: Sequence[Layer]) -> Iterator[tuple[Layer, str, int]]:
    """The layers, those in a row that are alike as one: each with its name and how many it is."""
    for _, group in groupby(layers, lambda each: (_NUMBER.sub("", each.name), _shape(each))):
        alike = list(group)
        if len(alike) < MIN_ALIKE or alike[0].is_variable:
            yield from ((each, shown(each.name) or "''", 1) for each in alike)
        else:
            name = f"{shown(alike[0].name)} … {shown(alike[-1].name)}"
            yield _merged(alike), name, len(alike)


def _shape(layer: Layer) -> Hashable:
    """What is equal for layers that hold the same variables with the same counts."""
    children = tuple((each.name, _shape(each)) for each in layer.children)
    return layer.is_variable, layer.counts(), children


def _merged(alike: Sequence[Layer]) -> Layer:
    """Layers of one shape as one, with the counts of all of them."""
    whole = Layer(alike[0].name, alike[0].is_variable)
    for each in alike:
        whole.add(each)
    whole.children = [
        _merged(parts) for parts in zip(*(each.children for each in alike), strict=True)
    ]
    return whole
