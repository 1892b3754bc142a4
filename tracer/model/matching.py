"""Which optimizers and which variables of two traces are the same. No TensorFlow.

Keras numbers layers in the order in which a process makes them, so the same model has other names
in another run; and a layer may have been added. `matched` finds what is the same nevertheless.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tracer.model.summary import Summary, summaries_of
from tracer.model.trace import Trace


@dataclass(frozen=True)
class Pair:
    """An optimizer that is in both traces, and its variables that are."""

    before: Summary
    after: Summary
    variables: list[tuple[int, int]]
    """Their indices, in the order of the second trace."""
    renamed: list[tuple[str, str]]
    """Layers that are numbered differently, and were matched in their order."""


class Matched(NamedTuple):
    """The optimizers of two traces."""

    pairs: list[Pair]
    only_before: list[Summary]
    only_after: list[Summary]


def matched(before: Trace, after: Trace) -> Matched:
    """Which optimizers and which variables of two traces are the same.

    Optimizers are matched by class, else by order; variables by name or, where the layers are
    numbered differently, as Keras does in a process that made others before, by their order.
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
    mine, other = variables_by_name(before), variables_by_name(after)
    names, renamed = match(list(mine), list(other))
    return Pair(before, after, [(mine[a], other[b]) for a, b in names], renamed)


def variables_by_name(summary: Summary) -> dict[str, int]:
    return {summary.trace.variables[index].name: index for index in summary.variables}


_NUMBER = re.compile(r"_(\d+)(?=/|$)")


def match(
    before: Sequence[str], after: Sequence[str]
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Pairs of variables, and pairs of layers that are named differently.

    >>> match(["dense_3/kernel", "dense_4/kernel"], ["dense/kernel", "dense_1/kernel"])[1]
    [('dense_3', 'dense'), ('dense_4', 'dense_1')]
    """
    to_layer = _layers(before, after)
    wanted = {_renamed(name, to_layer): name for name in before}
    pairs = [(wanted[name], name) for name in after if name in wanted]
    layers = {_layer(name) for name, _ in pairs}
    renamed = [
        (mine, other) for mine, other in to_layer.items() if mine != other and mine in layers
    ]
    return pairs, renamed


def _layer(name: str) -> str:
    """The part of a name that Keras numbers: all but the last word, or the only one."""
    return name.rpartition("/")[0] or name


def _renamed(name: str, to_layer: dict[str, str]) -> str:
    layer = _layer(name)
    return to_layer.get(layer, layer) + name[len(layer) :]


def _layers(before: Iterable[str], after: Iterable[str]) -> dict[str, str]:
    """For each layer of the one its name in the other: its own or, in order, one alike.

    Layers that differ in their numbers only are alike. Where one trace has all of the other's, each
    keeps its name: then a layer was added or taken away.
    """
    groups: tuple[dict[str, list[str]], dict[str, list[str]]] = ({}, {})
    for names, group in zip((before, after), groups, strict=True):
        for layer in dict.fromkeys(_layer(name) for name in names):
            group.setdefault(_NUMBER.sub("", layer), []).append(layer)
    to_layer: dict[str, str] = {}
    for pattern, mine in groups[0].items():
        others = groups[1].get(pattern, [])
        if set(mine) <= set(others) or set(others) <= set(mine):
            to_layer.update((name, name) for name in mine)
        else:
            to_layer.update(
                zip(sorted(mine, key=_numbers), sorted(others, key=_numbers), strict=False)
            )
    return to_layer


def _numbers(layer: str) -> list[int]:
    """The numbers of a layer and those around it: `dense_2` comes before `dense_10`."""
    matches = (_NUMBER.search(word) for word in layer.split("/"))
    return [int(match[1]) if match else 0 for match in matches]
