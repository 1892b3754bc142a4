"""Which optimizers and which variables of two traces are the same. No TensorFlow.

Keras numbers layers in the order in which a process makes them, so the same model has other names
in another run; and a layer may have been added. `matched` finds what is the same nevertheless.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice, product

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
    old, new = summaries_of(before), summaries_of(after)
    pairs = []
    for key in (class_name, short_class, lambda each: ""):
        for one in old.copy():
            for other in [each for each in new if key(each) == key(one)][:1]:
                old.remove(one)
                new.remove(other)
                pairs.append(_pair(one, other))
    return pairs, [*((each, "first") for each in old), *((each, "second") for each in new)]


def class_name(summary: Summary) -> str:
    return summary.optimizers[0].class_name


def short_class(summary: Summary) -> str:
    return class_of(summary.optimizers[0])


def _pair(before: Summary, after: Summary) -> Pair:
    one, other = before.trace.variables, after.trace.variables
    old = {one[index].name: index for index in before.variables}
    new = {other[index].name: index for index in after.variables}
    names = match(
        {name: one[index].shape for name, index in old.items()},
        {name: other[index].shape for name, index in new.items()},
        ends=before.optimizers[0].kind != after.optimizers[0].kind,
    )
    gone = old.keys() - names.values()
    indices = sorted((old[a], new[b]) for b, a in names.items())
    both = [(one[a], other[b]) for a, b in indices]
    layers = dict.fromkeys((_layer(a.name), _layer(b.name)) for a, b in both)
    return Pair(
        before,
        after,
        variables=[
            *((b, old[a], new[b]) for b, a in names.items()),
            *((a, index, None) for a, index in old.items() if a in gone),
            *((b, None, index) for b, index in new.items() if b not in names),
        ],
        renamed=[(a, b) for a, b in layers if a != b],
        reshaped=[(a, b) for a, b in both if not _same_shape(a.shape, b.shape)],
    )


def match(
    before: Mapping[str, Shape], after: Mapping[str, Shape], *, ends: bool = False
) -> dict[str, str]:
    """The names in `before` that mean the variables of `after`, as their layers and shapes say.

    Layers that differ in their numbers only are alike; if `ends`, those too of which one is named
    by the end of the other's path: `sequential/dense`.

    >>> match({"dense_3/kernel": (4,), "dense_4/kernel": (2,)}, {"dense_1/kernel": (2,)})
    {'dense_1/kernel': 'dense_4/kernel'}
    """
    old, new = _by_words(before), _by_words(after)
    alike = [(words, words) for words in old if words in new]
    if ends:
        alike += [
            (a, b)
            for a, b in product(old, new)
            if f"/{a}".endswith(f"/{b}") or f"/{b}".endswith(f"/{a}")
        ]
    layers: dict[str, str] = {}
    for a, b in alike:
        taken = set(layers.values())
        group = {layer: shapes for layer, shapes in old[a].items() if layer not in taken}
        layers |= _in_order(group, {e: shapes for e, shapes in new[b].items() if e not in layers})
    by_layer = (
        (name, layers[_layer(name)] + name[len(_layer(name)) :])
        for name in after
        if _layer(name) in layers
    )
    names = {name: other for name, other in by_layer if other in before}
    paired = {*names, *names.values()}
    return names | {name: name for name in after if name in before and name not in paired}


def _layer(name: str) -> str:
    """The part of a name that Keras numbers: all but the last word, or the only one."""
    return name.rpartition("/")[0] or name


_Layers = dict[str, dict[str, Shape]]
"""The shapes of the variables of each layer, by the rest of their names."""
_NUMBER = re.compile(r"(?:_(\d+))?(/|$)")


def _by_words(shapes: Mapping[str, Shape]) -> dict[str, _Layers]:
    """The layers by their names without numbers: `dense_2` comes before `dense_10`."""
    groups: dict[str, _Layers] = {}
    for name, shape in shapes.items():
        layer = _layer(name)
        layers = groups.setdefault(_NUMBER.sub(r"\2", layer), {})
        layers.setdefault(layer, {})[name[len(layer) :]] = shape

    def numbers(layer: str) -> list[int]:
        return [int(number or 0) for number, _ in _NUMBER.findall(layer)]

    return {
        words: {layer: layers[layer] for layer in sorted(layers, key=numbers)}
        for words, layers in groups.items()
    }


def _in_order(mine: _Layers, others: _Layers) -> dict[str, str]:
    """For each of `others` the next of `mine` with the same shapes, each in one pair only.

    Where one trace has all of the other's, each keeps its name: then a layer was added or removed.
    """
    found = {name: name for name in mine if name in others and _fit(mine[name], others[name])}
    if len(found) < min(len(mine), len(others)):
        found = {}
        for layer, shapes in mine.items():
            fitting = (e for e in others if e not in found and _fit(shapes, others[e]))
            found |= dict.fromkeys(islice(fitting, 1), layer)
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
