"""Matches the optimizers and variables of a run's workers. No TensorFlow.

Each worker numbers its optimizers in the order of their first steps, which may differ between
workers. So an optimizer is identified by the line that made it and, if the line made several, by
the names of its variables or by its number. A variable is identified by its optimizer and its name.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
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
    unlike: list[tuple[Root, Root]]
    """Pairs that must be one optimizer by their line, but have no variable in common."""


def match(traces: Sequence[TraceData]) -> Matching:
    """Match the optimizers and variables of the traces of one run's workers."""
    roots = list(_roots(traces))
    units: list[list[Root]] = []
    doubts: list[list[Root]] = []
    unlike: list[tuple[Root, Root]] = []
    for family in _families(roots):
        first = family[0]
        if _is_one_each(family) and _numbers_agree(family):
            same = [family]
            unlike += [(first, root) for root in family if not _may_share(first, root)][:1]
        else:
            same = _by_names(family) or _by_number(family)
        if not same:
            same = [[root] for root in family]
            doubts.append(family)
        units += same
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
    return Matching(optimizers, variables, doubts, unlike)


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
    if len(used) == 1:
        others = {*chain(*(row.variables for row in data.not_updated))}
        return dict.fromkeys(used, tuple({*range(len(data.variables))} - others))
    for block in data.blocks:
        used.get(block.root, set()).update(*(entry.variables for entry in block.entries))
    for calls in data.calls:
        used.get(data.optimizers[calls.optimizer].root, set()).update(calls.variables)
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


def _families(roots: Sequence[Root]) -> list[list[Root]]:
    """The roots by class and line, without the folders, which may differ between workers."""
    unknown = {root.record.class_name for root in roots if not root.record.made}

    def line(root: Root) -> Hashable:
        name = root.record.class_name
        return name, "" if name in unknown else re.split(r"[\\/]", root.record.made)[-1]

    return _grouped(roots, line)


def _by_names(family: Sequence[Root]) -> list[list[Root]]:
    """The roots by their variables; none if these do not tell them apart.

    Unless each worker used all optimizers that the line made, one that is not seen may have the
    same variables: then the numbers must agree.
    """
    groups = _grouped(family, lambda root: root.variables)
    used = Counter(root.trace for root in family)
    all_used = all(root.record.made_as[1] == used[root.trace] for root in family)
    agree = all_used or all(map(_numbers_agree, groups))
    unclear = any(
        _may_share(one[0], other[0]) and _traces(one).isdisjoint(_traces(other))
        for one, other in combinations(groups, 2)
    )
    return groups if agree and not unclear and all(map(_is_one_each, groups)) else []


def _by_number(family: Sequence[Root]) -> list[list[Root]]:
    """The roots by their number among the optimizers of the line; none if this is not known."""
    groups = _grouped(family, _number)
    agree = all(map(_number, family)) and _counts_agree(family)
    is_clear = all(_is_one_each(group) and _have_one_in_common(group) for group in groups)
    return groups if agree and is_clear else []


def _grouped(roots: Iterable[Root], key: Callable[[Root], Hashable]) -> list[list[Root]]:
    groups: dict[Hashable, list[Root]] = defaultdict(list)
    for root in roots:
        groups[key(root)].append(root)
    return list(groups.values())


def _have_one_in_common(roots: Iterable[Root]) -> bool:
    known = [root.variables for root in roots if root.variables]
    return not known or bool(frozenset.intersection(*known))


def _may_share(one: Root, other: Root) -> bool:
    """Whether the roots may share a variable; any may, if the variables of one are unknown."""
    return not (one.variables and other.variables) or not one.variables.isdisjoint(other.variables)


def _traces(roots: Iterable[Root]) -> set[int]:
    return {root.trace for root in roots}


def _is_one_each(roots: Sequence[Root]) -> bool:
    """Whether no two of the roots are of one trace."""
    return len(_traces(roots)) == len(roots)


def _number(root: Root) -> int:
    return root.record.made_as[0]


def _numbers_agree(roots: Sequence[Root]) -> bool:
    """Whether the roots have one number, of as many; or none."""
    return len({*map(_number, roots)}) == 1 and (not _number(roots[0]) or _counts_agree(roots))


def _counts_agree(roots: Sequence[Root]) -> bool:
    """Whether the line made as many optimizers on each worker, as far as workers have ended."""
    most = max(root.record.made_as[1] for root in roots)
    return all(root.record.made_as[1] == most or not root.finished for root in roots)


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
