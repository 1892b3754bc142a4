"""Which optimizers and which variables of two traces are the same. No TensorFlow.

Keras numbers layers in the order in which a process makes them, so the same model has other names
in another run; and a layer may have been added. `matched` finds what is the same nevertheless.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tracer.model.summary import Summary, summaries_of
from tracer.model.trace import Trace

Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class Pair:
    """An optimizer that is in both traces, and its variables that are."""

    before: Summary
    after: Summary
    variables: list[tuple[int, int]]
    """Their indices, in the order of the second trace."""
    renamed: list[tuple[str, str]]
    """Layers that have another name, and were matched by order and shapes."""
    reshaped: list[tuple[int, int]]
    """Those of `variables` that have the same name, and another shape."""
    only_before: list[int]
    """The variables that are in the first trace only."""
    only_after: list[int]


class Matched(NamedTuple):
    """The optimizers of two traces."""

    pairs: list[Pair]
    only_before: list[Summary]
    only_after: list[Summary]


def matched(before: Trace, after: Trace) -> Matched:
    """Which optimizers and which variables of two traces are the same.

    Optimizers are matched by class, else by order; variables by name or, where the layers are
    numbered differently, as Keras does in a process that made others before, by their order and
    shapes. Keras 2 names a variable by its layer and Keras 3 by the whole path, so optimizers of
    different kinds are matched by the ends of names, too.
    """
    ours, theirs = list(summaries_of(before)), list(summaries_of(after))
    pairs = []
    for key in (class_name, short_class, lambda each: ""):
        for mine in ours.copy():
            partner = next((each for each in theirs if key(each) == key(mine)), None)
            if partner is not None:
                ours.remove(mine)
                theirs.remove(partner)
                pairs.append(_pair(mine, partner))
    return Matched(pairs, ours, theirs)


def class_name(summary: Summary) -> str:
    return summary.optimizers[0].class_name


def short_class(summary: Summary) -> str:
    return class_name(summary).rpartition(".")[2]


def _pair(before: Summary, after: Summary) -> Pair:
    mine, other = _by_name(before), _by_name(after)
    names = match(_shapes(before), _shapes(after), ends=kind(before) != kind(after))
    pairs = [(mine[a], other[b]) for a, b in names.pairs]
    in_before, in_after = {index for index, _ in pairs}, {index for _, index in pairs}
    return Pair(
        before,
        after,
        pairs,
        names.renamed,
        [(mine[name], other[name]) for name in names.reshaped],
        [index for index in before.variables if index not in in_before],
        [index for index in after.variables if index not in in_after],
    )


def kind(summary: Summary) -> str:
    return summary.optimizers[0].kind


def _shapes(summary: Summary) -> dict[str, Shape]:
    variables = summary.trace.variables
    return {name: variables[index].shape for name, index in _by_name(summary).items()}


def _by_name(summary: Summary) -> dict[str, int]:
    return {summary.trace.variables[index].name: index for index in summary.variables}


_NUMBER = re.compile(r"_(\d+)(?=/|$)")


class Names(NamedTuple):
    """The variables of two traces that are the same, by name."""

    pairs: list[tuple[str, str]]
    renamed: list[tuple[str, str]]
    """Layers that have another name, and were matched by order and shapes."""
    reshaped: list[str]
    """Those of `pairs` that have the same name, and another shape."""


def match(before: Mapping[str, Shape], after: Mapping[str, Shape], *, ends: bool = False) -> Names:
    """Which names mean the same variable, by the layers that they are of and by their shapes.

    If `ends`, a layer may be named by the whole path in one trace only: `sequential/dense`.

    >>> match({"dense_3/kernel": (4,), "dense_4/kernel": (2,)}, {"dense_1/kernel": (2,)}).renamed
    [('dense_4', 'dense_1')]
    """
    to_layer = _layers(_by_layer(before), _by_layer(after), ends)
    wanted = {_renamed(name, to_layer): name for name in before if _layer(name) in to_layer}
    pairs = [(wanted[name], name) for name in after if name in wanted]
    paired = {name for pair in pairs for name in pair}
    reshaped = [name for name in after if name in before and name not in paired]
    layers = dict.fromkeys(_layer(name) for name in before)
    of_pairs = {_layer(name) for name, _ in pairs}
    renamed = [(e, to_layer[e]) for e in layers if e in of_pairs and e != to_layer[e]]
    return Names([*pairs, *((name, name) for name in reshaped)], renamed, reshaped)


def _layer(name: str) -> str:
    """The part of a name that Keras numbers: all but the last word, or the only one."""
    return name.rpartition("/")[0] or name


def _renamed(name: str, to_layer: Mapping[str, str]) -> str:
    layer = _layer(name)
    return to_layer[layer] + name[len(layer) :]


_Layers = dict[str, dict[str, Shape]]
"""The shapes of the variables of each layer, by the rest of their names."""


def _by_layer(shapes: Mapping[str, Shape]) -> _Layers:
    layers: _Layers = {}
    for name, shape in shapes.items():
        layer = _layer(name)
        layers.setdefault(layer, {})[name[len(layer) :]] = shape
    return layers


def _layers(before: _Layers, after: _Layers, ends: bool) -> dict[str, str]:
    """For each layer of the one its name in the other: its own or, in order, one alike.

    Layers that differ in their numbers only are alike, if what both hold has the same shapes. Where
    one trace has all of the other's, each keeps its name: then a layer was added or taken away.
    """
    groups = _alike(before), _alike(after)
    pairs = [(pattern, pattern) for pattern in groups[0] if pattern in groups[1]]
    if ends:
        pairs += [(one, other) for one in groups[0] for other in groups[1] if _is_end(one, other)]
    to_layer: dict[str, str] = {}
    for pattern, other in pairs:
        mine = {e: before[e] for e in groups[0][pattern] if e not in to_layer}
        taken = set(to_layer.values())
        to_layer |= _in_order(mine, {e: after[e] for e in groups[1][other] if e not in taken})
    return to_layer


def _alike(layers: _Layers) -> dict[str, list[str]]:
    """The layers that differ in their numbers only, in the order of these."""
    groups: dict[str, list[str]] = {}
    for layer in layers:
        groups.setdefault(_NUMBER.sub("", layer), []).append(layer)
    return {pattern: sorted(group, key=_numbers) for pattern, group in groups.items()}


def _is_end(one: str, other: str) -> bool:
    return one.endswith(f"/{other}") or other.endswith(f"/{one}")


def _in_order(mine: _Layers, others: _Layers) -> dict[str, str]:
    """Pairs of layers that are alike, where each layer is in one pair."""
    if mine.keys() <= others.keys() or others.keys() <= mine.keys():
        same = {name: name for name in mine if name in others and _fit(mine[name], others[name])}
        if len(same) == min(len(mine), len(others)):
            return same
    free = list(others)
    pairs = {}
    for layer, shapes in mine.items():
        partner = next((other for other in free if _fit(shapes, others[other])), None)
        if partner is not None:
            free.remove(partner)
            pairs[layer] = partner
    return pairs


def _fit(mine: Mapping[str, Shape], other: Mapping[str, Shape]) -> bool:
    """Whether two layers hold a variable of one name, and all such of one shape."""
    both = mine.keys() & other.keys()
    return bool(both) and all(same_shape(mine[name], other[name]) for name in both)


def same_shape(one: Shape, other: Shape) -> bool:
    """Whether the shapes are the same, as far as both are known."""
    return len(one) == len(other) and all(
        a == b or None in (a, b) for a, b in zip(one, other, strict=True)
    )


def _numbers(layer: str) -> list[int]:
    """The numbers of a layer and those around it: `dense_2` comes before `dense_10`."""
    matches = (_NUMBER.search(word) for word in layer.split("/"))
    return [int(match[1]) if match else 0 for match in matches]
