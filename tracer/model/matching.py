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
Alone = tuple[Summary, str]
"""An optimizer that is in one trace only: the `first` or the `second`."""


@dataclass(frozen=True)
class Pair:
    """An optimizer that is in both traces, and its variables by their indices in each of them."""

    before: Summary
    after: Summary
    variables: list[tuple[int, int]]
    """Those in both, in the order of the second trace."""
    alone: list[tuple[int | None, int | None]]
    """Those in one, those of the first trace before those of the second."""

    def name(self, index: int | None, other: int | None) -> str:
        """The name of a variable, in the second trace if it is there."""
        if other is not None:
            return self.after.trace.variables[other].name
        return "" if index is None else self.before.trace.variables[index].name

    @property
    def renamed(self) -> list[tuple[str, str]]:
        """Layers that have another name, and were matched by order and shapes."""
        layers = ((_layer(a.name), _layer(b.name)) for a, b in self._variables())
        return [names for names in dict.fromkeys(layers) if names[0] != names[1]]

    @property
    def reshaped(self) -> list[tuple[Variable, Variable]]:
        """Variables of one name that have another shape."""
        return [(a, b) for a, b in self._variables() if not _same_shape(a.shape, b.shape)]

    def _variables(self) -> list[tuple[Variable, Variable]]:
        before, after = self.before.trace.variables, self.after.trace.variables
        return [(before[index], after[other]) for index, other in sorted(self.variables)]


def matched(before: Trace, after: Trace) -> tuple[list[Pair], list[Alone]]:
    """Which optimizers and which variables of two traces are the same.

    Optimizers are matched by class, else by order; variables by name or, where the layers are
    numbered differently, as Keras does in a process that made others before, by their order and
    shapes. Keras 2 names a variable by its layer and Keras 3 by the whole path, so optimizers of
    different kinds are matched by the ends of names, too.
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
    mine, other = (
        {each.trace.variables[index].name: index for index in each.variables}
        for each in (before, after)
    )
    names = match(
        {name: before.trace.variables[index].shape for name, index in mine.items()},
        {name: after.trace.variables[index].shape for name, index in other.items()},
        ends=kind(before) != kind(after),
    )
    pairs = [(mine[a], other[b]) for a, b in names]
    in_before, in_after = {index for index, _ in pairs}, {index for _, index in pairs}
    alone: list[tuple[int | None, int | None]] = []
    alone += [(index, None) for index in before.variables if index not in in_before]
    alone += [(None, index) for index in after.variables if index not in in_after]
    return Pair(before, after, pairs, alone)


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
