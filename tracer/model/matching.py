"""Which optimizers and which variables of two traces are the same. No TensorFlow.

Keras numbers layers in the order in which a process makes them, so the same model has other names
in another run; and a layer may have been added. `matched` finds what is the same nevertheless.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tracer.model.labels import class_of
from tracer.model.records import Variable
from tracer.model.summary import Summary, summaries_of
from tracer.model.trace import Trace

Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class Pair:
    """An optimizer that is in both traces."""

    before: Summary
    after: Summary
    variables: list[tuple[str, int | None, int | None]]
    """The variables, by name (that in the second trace, if they are there), each with its index in
    both traces, None where it is not: first those in both, in the order of the second trace."""
    renamed: list[tuple[str, str]]
    """Layers that have another name, and were matched by order and shapes."""
    reshaped: list[tuple[Variable, Variable]]
    """Variables of one name that have another shape."""


def matched(before: Trace, after: Trace) -> tuple[list[Pair], list[tuple[Summary, str]]]:
    """Which optimizers and which variables of two traces are the same.

    Optimizers are matched by class, else by order; variables by name or, where the layers are
    numbered differently, as Keras does in a process that made others before, by their order and
    shapes. Keras 2 names a variable by its layer and Keras 3 by the whole path, so optimizers of
    different kinds are matched by the ends of names, too. An optimizer that is in one trace only is
    given with which one that is: the `first` or the `second`.
    """
    ours, theirs = summaries_of(before), summaries_of(after)
    pairs = []
    for key in (class_name, short_class, lambda each: ""):
        for mine in ours.copy():
            partner = next((each for each in theirs if key(each) == key(mine)), None)
            if partner is not None:
                ours.remove(mine)
                theirs.remove(partner)
                pairs.append(_pair(mine, partner))
    return pairs, [*((each, "first") for each in ours), *((each, "second") for each in theirs)]


def class_name(summary: Summary) -> str:
    return summary.optimizers[0].class_name


def short_class(summary: Summary) -> str:
    return class_of(summary.optimizers[0])


def kind(summary: Summary) -> str:
    return summary.optimizers[0].kind


def _pair(before: Summary, after: Summary) -> Pair:
    mine, other = _by_name(before), _by_name(after)
    old, new = before.trace.variables, after.trace.variables
    names = match(
        {name: old[index].shape for name, index in mine.items()},
        {name: new[index].shape for name, index in other.items()},
        ends=kind(before) != kind(after),
    )
    old_names, new_names = {a for a, _ in names}, {b for _, b in names}
    variables: list[tuple[str, int | None, int | None]] = [(b, mine[a], other[b]) for a, b in names]
    variables += [(a, mine[a], None) for a in mine if a not in old_names]
    variables += [(b, None, other[b]) for b in other if b not in new_names]
    both = [(old[mine[a]], new[other[b]]) for a, b in sorted(names, key=lambda each: mine[each[0]])]
    layers = dict.fromkeys((_layer(a.name), _layer(b.name)) for a, b in both)
    return Pair(
        before,
        after,
        variables,
        renamed=[(a, b) for a, b in layers if a != b],
        reshaped=[(a, b) for a, b in both if not _same_shape(a.shape, b.shape)],
    )


def _by_name(summary: Summary) -> dict[str, int]:
    return {summary.trace.variables[index].name: index for index in summary.variables}


def match(
    before: Mapping[str, Shape], after: Mapping[str, Shape], *, ends: bool = False
) -> list[tuple[str, str]]:
    """The names that mean the same variable, by the layers that they are of and by their shapes.

    If `ends`, a layer may be named by the whole path in one trace only: `sequential/dense`.

    >>> match({"dense_3/kernel": (4,), "dense_4/kernel": (2,)}, {"dense_1/kernel": (2,)})
    [('dense_4/kernel', 'dense_1/kernel')]
    """
    layers = _layers(_by_layer(before), _by_layer(after), ends)
    pairs = []
    for name in after:
        layer = _layer(name)
        if layer in layers and (old := layers[layer] + name[len(layer) :]) in before:
            pairs.append((old, name))
    paired = {name for pair in pairs for name in pair}
    return pairs + [(name, name) for name in after if name in before and name not in paired]


def _layer(name: str) -> str:
    """The part of a name that Keras numbers: all but the last word, or the only one."""
    return name.rpartition("/")[0] or name


_Layers = dict[str, dict[str, Shape]]
"""The shapes of the variables of each layer, by the rest of their names."""


def _by_layer(shapes: Mapping[str, Shape]) -> _Layers:
    layers: _Layers = {}
    for name, shape in shapes.items():
        layer = _layer(name)
        layers.setdefault(layer, {})[name[len(layer) :]] = shape
    return layers


def _layers(before: _Layers, after: _Layers, ends: bool) -> dict[str, str]:
    """For layers of the second trace their names in the first: see `_in_order`.

    Layers that differ in their numbers only are alike; if `ends`, those too of which one is named
    by the end of the other's path.
    """
    groups, others = _alike(before), _alike(after)
    pairs = [(words, words) for words in groups if words in others]
    if ends:
        pairs += [
            (one, other)
            for one in groups
            for other in others
            if one.endswith(f"/{other}") or other.endswith(f"/{one}")
        ]
    found: dict[str, str] = {}
    for one, other in pairs:
        taken = set(found.values())
        mine = {layer: before[layer] for layer in groups[one] if layer not in taken}
        found |= _in_order(mine, {e: after[e] for e in others[other] if e not in found})
    return found


_NUMBER = re.compile(r"_(\d+)(?=/|$)")


def _alike(layers: _Layers) -> dict[str, list[str]]:
    """The layers that differ in their numbers only: `dense_2` comes before `dense_10`."""
    groups: dict[str, list[str]] = {}
    for layer in layers:
        groups.setdefault(_NUMBER.sub("", layer), []).append(layer)
    return {words: sorted(group, key=_numbers) for words, group in groups.items()}


def _numbers(layer: str) -> list[int]:
    matches = (_NUMBER.search(word) for word in layer.split("/"))
    return [int(match[1]) if match else 0 for match in matches]


def _in_order(mine: _Layers, others: _Layers) -> dict[str, str]:
    """For each of `others` the next of `mine` with the same shapes, each in one pair only.

    Where one trace has all of the other's, each keeps its name: then a layer was added or removed.
    """
    found = {name: name for name in mine if name in others and _fit(mine[name], others[name])}
    if len(found) < min(len(mine), len(others)):
        found = {}
        for layer, shapes in mine.items():
            fitting = (e for e in others if e not in found and _fit(shapes, others[e]))
            found |= {other: layer for other in [next(fitting, None)] if other}
    return found


def _fit(mine: Mapping[str, Shape], other: Mapping[str, Shape]) -> bool:
    """Whether two layers hold a variable of one name, and all such of one shape."""
    both = mine.keys() & other.keys()
    return bool(both) and all(_same_shape(mine[name], other[name]) for name in both)


def _same_shape(one: Shape, other: Shape) -> bool:
    """Whether the shapes are the same, as far as both are known."""
    return len(one) == len(other) and all(
        a == b or None in (a, b) for a, b in zip(one, other, strict=True)
    )
