"""Matches the optimizers and variables of a run's workers. No TensorFlow.

Each worker numbers its optimizers in the order of their first steps, which may differ between
workers. So an optimizer is identified by its class, the line that made it, and its number among
the optimizers of the line. A variable is identified by its optimizer and its name.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from tracer.model.names import without_number
from tracer.model.records import Optimizer, TraceData, Variable

Label = tuple[Hashable, ...]
"""A variable's name without its number, its shape, dtype and shards; and its place among equals."""


@dataclass(frozen=True, eq=False)
class Root:
    """An outermost optimizer in the trace of a worker."""

    trace: int
    index: int
    record: Optimizer
    labels: dict[int, Label]
    """The label of each of its variables, by index; also of those that it does not get."""
    variables: frozenset[Label]
    """The labels of the variables that it gets."""
    finished: bool
    """False if its line may have made more optimizers after the trace was written."""


class Matching(NamedTuple):
    """The identities of what traces hold, and what is wrong with them."""

    optimizers: list[list[Hashable]]
    """Of each trace, the identity of each optimizer."""
    variables: list[list[Hashable]]
    doubts: list[list[Root]]
    """Optimizers that may be the same on different workers, and are kept apart."""


def match(traces: Sequence[TraceData]) -> Matching:
    """Match the optimizers and variables of the traces of one run's workers."""
    units: list[list[Root]] = []
    doubts: list[list[Root]] = []
    for family in _families(_roots(traces)):
        groups = _grouped(family, _number)
        if not _numbers_agree(family, groups) or any(map(_has_strangers, groups)):
            groups = [[root] for root in family]
            doubts += [family] if len({root.trace for root in family}) > 1 else []
        units += groups
    unit_of = {(root.trace, root.index): n for n, unit in enumerate(units) for root in unit}
    optimizers = [list(_identities(data, n, unit_of)) for n, data in enumerate(traces)]
    names: list[dict[int, Hashable]] = [{} for _ in traces]
    for number, unit in reversed([*enumerate(units)]):  # of several optimizers, the first counts
        for root in unit:
            names[root.trace].update((index, (number, own)) for index, own in root.labels.items())
    variables = [
        [named.get(index, variable.name) for index, variable in enumerate(data.variables)]
        for data, named in zip(traces, names, strict=True)
    ]
    return Matching(optimizers, variables, doubts)


def _roots(traces: Sequence[TraceData]) -> Iterator[Root]:
    known: dict[Hashable, tuple[dict[int, Label], frozenset[Label]]] = {}
    for number, data in enumerate(traces):
        others: dict[int, set[int]] = defaultdict(set)
        for row in data.not_updated:
            others[row.root].update(row.variables)
        for index, used in _variables_used(data).items():
            rest = tuple(sorted(others[index] - {*used}))
            if (data.variables, used, rest) not in known:
                labels = _labels(data.variables, (*used, *rest))
                compared = frozenset(labels[each] for each in used)
                known[data.variables, used, rest] = labels, compared
            record, labelled = data.optimizers[index], known[data.variables, used, rest]
            yield Root(number, index, record, *labelled, data.finished)


def _variables_used(data: TraceData) -> dict[int, tuple[int, ...]]:
    """The indices of the variables of each root optimizer."""
    used: dict[int, set[int]] = {
        index: set() for index, each in enumerate(data.optimizers) if each.root == index
    }
    if len(used) == 1:  # also those of which other ranks hold all elements
        others = {*chain(*(row.variables for row in data.not_updated))}
        return dict.fromkeys(used, tuple({*range(len(data.variables))} - others))
    for block in chain(data.blocks, data.calls):
        used.get(block.root, set()).update(*(entry.variables for entry in block.entries))
    return {index: tuple(sorted(variables)) for index, variables in used.items()}


def _labels(variables: Sequence[Variable], used: Iterable[int]) -> dict[int, Label]:
    times = Counter[Label]()
    labels: dict[int, Label] = {}
    for index in used:
        own = variables[index]
        label = without_number(own.name), own.shape, own.dtype, own.shards
        times[label] += 1
        labels[index] = *label, times[label]
    return labels


# Which roots are one optimizer.


def _families(roots: Iterable[Root]) -> list[list[Root]]:
    """The roots by class and line, without the folders, which may differ between workers."""
    every = [*roots]
    unknown = {root.record.class_name for root in every if not root.record.made}

    def line(root: Root) -> Hashable:
        name = root.record.class_name
        return name, "" if name in unknown else re.split(r"[\\/]", root.record.made)[-1]

    return _grouped(every, line)


def _grouped(roots: Iterable[Root], key: Callable[[Root], Hashable]) -> list[list[Root]]:
    groups: dict[Hashable, list[Root]] = defaultdict(list)
    for root in roots:
        groups[key(root)].append(root)
    return list(groups.values())


def _number(root: Root) -> int:
    return root.record.made_as[0]


def _numbers_agree(family: Sequence[Root], groups: Iterable[Sequence[Root]]) -> bool:
    """True if each worker has one optimizer of each number, and the line made as many on each.

    A worker that was killed may have made fewer.
    """
    most = max(root.record.made_as[1] for root in family)
    made_as_many = all(root.record.made_as[1] == most or not root.finished for root in family)
    return made_as_many and all(len({root.trace for root in own}) == len(own) for own in groups)


def _has_strangers(roots: Sequence[Root]) -> bool:
    """True if one of the roots has other variables than the first one, and none in common."""
    known = [root.variables for root in roots if root.variables]
    return any(known[0].isdisjoint(variables) for variables in known[1:])


# The identities.


def _identities(
    data: TraceData, trace: int, unit_of: dict[tuple[int, int], int]
) -> Iterator[Hashable]:
    """Yield the identity of each optimizer: its unit; for a nested one, its class and place."""
    times = Counter[Hashable]()
    for index, optimizer in enumerate(data.optimizers):
        unit = unit_of.get((trace, optimizer.root))
        nested = unit, optimizer.class_name
        times[nested] += index != optimizer.root
        yield unit if index == optimizer.root else (*nested, times[nested])
