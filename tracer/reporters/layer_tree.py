"""The updates of each layer: variables folded by the path in their names, for every report."""

import re
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from tracer.errors import shown
from tracer.model import measures
from tracer.model.summary import Summary
from tracer.model.wording import dash, first_of
from tracer.reporters.trees import Node, folded

MIN_ALIKE = 3
"""So many layers in a row that count the same, and differ in their number alone, are one row."""
MAX_NAMES = 3
"""So many variables are named in the row of a layer."""
_NUMBER = re.compile(r"_?\d+$")


@dataclass
class Layer:
    """A layer, or one variable, which has no children."""

    name: str
    updates: Counter[tuple[int, int]] = field(default_factory=Counter)
    """How many of its variables have how many dense and sparse updates."""
    children: list["Layer"] = field(default_factory=list)

    def counts(self) -> tuple[int, int, int, int, int]:
        """Its variables, how many were never updated, and their updates: all, dense and sparse."""
        dense = sum(number * each for (each, _), number in self.updates.items())
        sparse = sum(number * each for (_, each), number in self.updates.items())
        return self.updates.total(), self.updates[0, 0], dense + sparse, dense, sparse

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
    updates = {
        index: counts
        for pattern in summary.patterns
        for counts in [(pattern.total(measures.dense), pattern.total(measures.sparse))]
        for index in pattern.variables
    }
    known: dict[tuple[str, ...], Layer] = {(): Layer("")}
    for index in summary.variables:
        path = tuple(summary.trace.variables[index].name.split(summary.dialect.separator))
        known[()].updates[updates[index]] += 1
        for size in range(1, len(path)):
            if path[:size] not in known:
                known[path[:size]] = Layer(path[size - 1])
                known[path[: size - 1]].children.append(known[path[:size]])
            known[path[:size]].updates[updates[index]] += 1
        known[path[:-1]].children.append(Layer(path[-1], Counter([updates[index]])))
    return known[()]


def nodes(summary: Summary, odd: str = "", wrong: str = "") -> list[Node]:
    """The tree with variables, updates, updates of each, dense and sparse; what is alike folded.

    `odd` and `wrong` are the styles of layers of which some, or all, variables were never updated.
    """
    layers = _together(tree(summary).children)
    return [folded(_node(*each, odd, wrong)) for each in layers]


def _node(layer: Layer, name: str, alike: int, odd: str, wrong: str, times: int = 1) -> Node:
    """A layer with its children; if it stands for several that are alike, their counts together."""
    times *= alike
    variables, never, updates, dense, sparse = (times * count for count in layer.counts())
    notes = [f"{alike:,} alike"] if alike > 1 else []
    if never:
        notes.append(f"{never:,} never updated" if never < variables else "never updated")
    children = [_node(*each, odd, wrong, times) for each in _together(layer.children)]
    even = len(layer.children) > 1 and len(set(map(_shape, layer.children))) == 1
    if even and not layer.children[0].children:
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
    """The layers, those in a row that are alike as one: each with its name and how many it is."""
    for _, group in groupby(layers, lambda each: (_NUMBER.sub("", each.name), _shape(each))):
        alike = list(group)
        if len(alike) < MIN_ALIKE or not alike[0].children:
            yield from ((each, shown(each.name) or "''", 1) for each in alike)
        else:
            name = f"{shown(alike[0].name)} … {shown(alike[-1].name)}"
            yield alike[0], name, len(alike)


def _shape(layer: Layer) -> Hashable:
    """What is equal for layers that hold the same variables with the same counts."""
    return frozenset(layer.updates.items()), tuple(
        (each.name, _shape(each)) for each in layer.children
    )
