"""The updates of each layer: variables folded by the path in their names, for every report."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
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


@dataclass(frozen=True)
class Layer:
    """A layer, or one variable, which has no children."""

    path: str = field(compare=False)
    """Its name after those of the layers that it is in."""
    name: str
    updates: Counter[tuple[int, int]]
    """How many of its variables have how many dense and sparse updates."""
    children: tuple["Layer", ...]

    def counts(self) -> tuple[int, int, int, int, int]:
        """Its variables, how many were never updated, and their updates: all, dense and sparse."""
        dense = sum(number * each for (each, _), number in self.updates.items())
        sparse = sum(number * each for (_, each), number in self.updates.items())
        return self.updates.total(), self.updates[0, 0], dense + sparse, dense, sparse


def tree(summary: Summary) -> Layer:
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
    """The layer at a path, of variables with their paths and their updates."""
    depth = len(path)
    below: dict[tuple[str, int], list[tuple[list[str], tuple[int, int]]]] = {}
    for number, member in enumerate(members):
        if rest := member[0][depth:]:  # a layer and variables may have one name
            below.setdefault((rest[0], number if len(rest) == 1 else -1), []).append(member)
    return Layer(
        separator.join(path),
        path[-1] if path else "",
        Counter(updates for _, updates in members),
        tuple(_layer([*path, name], each, separator) for (name, _), each in below.items()),
    )


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
    """The layers, those in a row that are alike as one: each with its name and how many it is."""
    for _, group in groupby(layers, _shape):
        alike = list(group)
        if len(alike) < MIN_ALIKE or not alike[0].children:
            yield from ((each, shown(each.name) or "''", 1) for each in alike)
        else:
            name = f"{shown(alike[0].name)} … {shown(alike[-1].name)}"
            yield alike[0], name, len(alike)


def _shape(layer: Layer) -> tuple[object, ...]:
    """What is equal for layers that differ in their number alone."""
    return _NUMBER.sub("", layer.name), layer.updates, layer.children
