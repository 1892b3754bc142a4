"""Matches the optimizers and variables of a run's workers. No TensorFlow.

Each worker numbers its optimizers in the order of their first steps, which may differ between
workers. So an optimizer is identified by the line that made it, by its number among the optimizers
of that line, and by the names and shapes of its variables; a variable is identified by its
optimizers and its name.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import NamedTuple

from tracer.model.names import without_number
from tracer.model.records import Optimizer, TraceData, Variable

Label = tuple[Hashable, ...]
"""A variable's name without its number, shape and dtype; and its place among equal ones."""


@dataclass(frozen=True, eq=False)
class Root:
    """An outermost optimizer in the trace of a worker."""

    trace: int
    index: int
    record: Optimizer
    labels: dict[int, Label]
    """The label of each of its variables, by index."""
    variables: frozenset[Label]
    finished: bool
    """False if its line may have made more optimizers after the trace was written."""


class Matching(NamedTuple):
    """The identities of what traces hold, and what is wrong with them."""

    optimizers: list[list[Hashable]]
    """Of each trace, the identity of each optimizer."""
    variables: list[list[Hashable]]
    doubts: list[list[list[Root]]]
    """Optimizers that may be the same on different workers, and are kept apart."""
    unlike: list[tuple[Root, Root]]
    """Pairs that must be one optimizer by their line, but have no variable in common."""


def match(traces: Sequence[TraceData]) -> Matching:
    """Match the optimizers and variables of the traces of one run's workers."""
    roots = list(_roots(traces))
    units: list[list[Root]] = []
    doubts: list[list[list[Root]]] = []
    unlike: list[tuple[Root, Root]] = []
    for family in _families(roots):
        all_known = _all_known(family)
        numbered: dict[tuple[int, int], list[Root]] = {}
        for sharing in _sharing(family):
            same = _by_names(sharing, all_known) or _by_number(sharing)
            if not same:
                doubts.append(list(_where_counts_agree(sharing)))
            for unit in same:
                first = numbered.setdefault(unit[0].record.made_as, unit)
                alone = _traces(first).isdisjoint(_traces(unit))
                if alone and _is_numbered(unit) and not _share(first[0], unit[0]):
                    unlike.append((first[0], unit[0]))
            units += same or doubts[-1]
    unit_of = {(e.trace, e.index): number for number, unit in enumerate(units) for e in unit}
    optimizers = [list(_identities(data, n, unit_of)) for n, data in enumerate(traces)]
    return Matching(optimizers, _variables(traces, roots, unit_of), doubts, unlike)


def _roots(traces: Sequence[TraceData]) -> Iterator[Root]:
    known: dict[Hashable, tuple[dict[int, Label], frozenset[Label]]] = {}
    for number, data in enumerate(traces):
        for index, used in _variables_used(data).items():
            labels = known.get((data.variables, used))
            if labels is None:
                found = _labels(data.variables, used)
                labels = known[data.variables, used] = found, frozenset(found.values())
            yield Root(number, index, data.optimizers[index], *labels, data.finished)


def _variables_used(data: TraceData) -> dict[int, tuple[int, ...]]:
    """The indices of the variables of each root optimizer."""
    used: dict[int, set[int]] = {
        index: set() for index, each in enumerate(data.optimizers) if each.root == index
    }
    if len(used) == 1:
        return dict.fromkeys(used, tuple(range(len(data.variables))))
    for block in data.blocks:
        used.get(block.root, set()).update(*(entry.variables for entry in block.entries))
    for calls in data.calls:
        used.get(data.optimizers[calls.optimizer].root, set()).update(calls.variables)
    return {index: tuple(sorted(variables)) for index, variables in used.items()}


def _labels(variables: Sequence[Variable], used: Iterable[int]) -> dict[int, Label]:
    times = Counter[Label]()
    labels: dict[int, Label] = {}
    for index in used:
        variable = variables[index]
        label = without_number(variable.name), variable.shape, variable.dtype
        times[label] += 1
        labels[index] = *label, times[label]
    return labels


# Which roots are one optimizer.


def _families(roots: Iterable[Root]) -> Iterable[list[Root]]:
    """The roots by class and line, without the folders, which may differ between workers."""
    unknown = {root.record.class_name for root in roots if not root.record.made}
    files: dict[tuple[int, str], set[str]] = defaultdict(set)
    for root in roots:
        files[root.trace, _without_folder(root.record.made)].add(root.record.made)
    several = {line for (_, line), made in files.items() if len(made) > 1}
    families: dict[tuple[str, str], list[Root]] = defaultdict(list)
    for root in roots:
        line = _without_folder(root.record.made)
        line = root.record.made if line in several else line
        name = root.record.class_name
        families[name, "" if name in unknown else line].append(root)
    return families.values()


def _without_folder(line: str) -> str:
    return re.split(r"[\\/]", line)[-1]


def _sharing(family: Sequence[Root]) -> list[list[Root]]:
    """The roots that share variables, directly or through others.

    One without variables may be any of them.
    """
    if not all(root.variables for root in family):
        return [list(family)]
    groups: list[tuple[set[Label], list[Root]]] = []
    for variables, alike in _by_variables(family).items():
        touching = [group for group in groups if not group[0].isdisjoint(variables)]
        groups = [group for group in groups if group[0].isdisjoint(variables)]
        labels = variables.union(*(group[0] for group in touching))
        groups.append((set(labels), [*chain(*(group[1] for group in touching)), *alike]))
    return [roots for _, roots in groups]


def _by_names(roots: Sequence[Root], all_known: bool) -> list[list[Root]]:
    """The roots by their variables; none if these do not tell them apart.

    `all_known` if each worker used all optimizers that the line made, so that none is unseen with
    the same variables; otherwise the numbers must agree.
    """
    groups = list(_by_variables(roots).values())
    for one, other in combinations(groups, 2):
        if _share(one[0], other[0]) and _traces(one).isdisjoint(_traces(other)):
            return []
    agree = all_known or all(
        not _is_numbered(group) or (_counts_agree(group) and len({*map(_number, group)}) == 1)
        for group in groups
    )
    return groups if agree and all(map(_is_one_each, groups)) else []


def _by_number(roots: Sequence[Root]) -> list[list[Root]]:
    """The roots by their number among the optimizers of the line; none if this is not known."""
    if not _is_numbered(roots):
        return [list(roots)] if _is_one_each(roots) else []
    numbered: dict[int, list[Root]] = defaultdict(list)
    for root in roots:
        numbered[_number(root)].append(root)
    groups = list(numbered.values())
    for group in groups:
        known = {root.variables for root in group if root.variables}
        if not _is_one_each(group) or (known and not frozenset.intersection(*known)):
            return []
    return groups if _counts_agree(roots) else []


def _where_counts_agree(roots: Iterable[Root]) -> Iterator[list[Root]]:
    """Yield the roots by their number, on the workers where the line made as many optimizers."""
    counts: dict[int, list[Root]] = defaultdict(list)
    for root in roots:
        counts[root.record.made_as[1]].append(root)
    for alike in counts.values():
        yield from _by_number(alike) or ([root] for root in alike)


def _by_variables(roots: Iterable[Root]) -> dict[frozenset[Label], list[Root]]:
    groups: dict[frozenset[Label], list[Root]] = defaultdict(list)
    for root in roots:
        groups[root.variables].append(root)
    return groups


def _share(one: Root, other: Root) -> bool:
    """Whether the roots may share a variable; any may, if the variables of one are unknown."""
    both = one.variables, other.variables
    return not all(both) or not both[0].isdisjoint(both[1])


def _traces(roots: Iterable[Root]) -> set[int]:
    return {root.trace for root in roots}


def _is_one_each(roots: Sequence[Root]) -> bool:
    """Whether no two of the roots are of one trace."""
    return len(_traces(roots)) == len(roots)


def _number(root: Root) -> int:
    return root.record.made_as[0]


def _is_numbered(roots: Iterable[Root]) -> bool:
    return all(map(_number, roots))


def _counts_agree(roots: Sequence[Root]) -> bool:
    """Whether the line made as many optimizers on each worker, as far as workers have ended."""
    most = max(root.record.made_as[1] for root in roots)
    return all(root.record.made_as[1] == most or not root.finished for root in roots)


def _all_known(family: Sequence[Root]) -> bool:
    """Whether the traces hold all optimizers that the line made."""
    number = Counter(root.trace for root in family)
    return all(root.record.made_as[1] == number[root.trace] for root in family)


# The identities.


def _identities(
    data: TraceData, trace: int, unit_of: dict[tuple[int, int], int]
) -> Iterator[Hashable]:
    """Yield the identity of each optimizer: its unit; for a nested one, its class and place."""
    times = Counter[Hashable]()
    for index, each in enumerate(data.optimizers):
        unit = unit_of.get((trace, each.root))
        nested = unit, each.class_name
        times[nested] += index != each.root
        yield unit if index == each.root else (*nested, times[nested])


def _variables(
    traces: Sequence[TraceData], roots: Iterable[Root], unit_of: dict[tuple[int, int], int]
) -> list[list[Hashable]]:
    """The identity of each variable: a number that it has in all traces."""
    own: dict[int, list[Root]] = defaultdict(list)
    for root in roots:
        own[root.trace].append(root)
    numbers: dict[Hashable, int] = {}
    known: dict[Hashable, list[Hashable]] = {}
    alike = [
        (data.variables, tuple((unit_of[trace, e.index], tuple(e.labels)) for e in own[trace]))
        for trace, data in enumerate(traces)
    ]
    for trace, case in enumerate(alike):
        if case not in known:
            names: list[list[Hashable]] = [[] for _ in traces[trace].variables]
            for root in own[trace]:
                for index, label in root.labels.items():
                    names[index].append((unit_of[trace, root.index], label))
            taken: dict[Hashable, None] = {}
            for variable, its_names in zip(traces[trace].variables, names, strict=True):
                its_names = its_names or [variable.name]
                found = [numbers[e] for e in its_names if e in numbers and numbers[e] not in taken]
                number = found[0] if found else len(numbers)
                taken[number] = None
                for name in its_names:
                    numbers.setdefault(name, number)
            known[case] = [*taken]
    return [known[case] for case in alike]
