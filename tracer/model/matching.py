"""Matches the optimizers and variables of a run's workers. No TensorFlow.

Each worker numbers its optimizers in the order of their first steps, which may differ between
workers. So an optimizer is identified by its class, the line that made it, and its number among
the optimizers of the line. A variable is identified by its optimizer and its name.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from functools import cache
from itertools import chain
from typing import NamedTuple

from msgspec.structs import replace

from tracer.model.names import distinct, without_number
from tracer.model.records import Optimizer, TraceData, Variable


class Root(NamedTuple):
    """An outermost optimizer in the trace of a worker."""

    trace: int
    place: int
    """Its index in the trace."""
    record: Optimizer
    variables: dict[int, Variable]
    """Its variables, and those of its models, by index; numbered among those of its own."""
    gets: frozenset[Variable]
    """Those of them that it gets."""
    finished: bool
    """False if its line may have made more optimizers after the trace was written."""


def match(
    traces: Sequence[TraceData],
) -> tuple[list[list[Hashable]], list[list[Hashable]], list[list[Root]]]:
    """Match the optimizers and variables of the traces of one run's workers.

    Returns, for each trace, the identity of each optimizer and of each variable; and groups of
    optimizers that may be the same on different workers, and are kept apart.
    """
    every = [*_roots(traces)]
    unknown = {root.record.class_name for root in every if not root.record.made}
    families: dict[Hashable, list[Root]] = defaultdict(list)
    for root in every:
        name, line = root.record.class_name, re.split(r"[\\/]", root.record.made)[-1]
        families[name, "" if name in unknown else line].append(root)  # folders may differ
    same: dict[Hashable, list[Root]] = defaultdict(list)
    doubts = []
    for family, roots in families.items():
        certain = _is_certain(roots)
        if not certain and len({root.trace for root in roots}) > 1:
            doubts.append(roots)
        for root in roots:
            number = root.record.made_as[0] if certain else (root.trace, root.place)
            same[family, number].append(root)
    identity: dict[tuple[int, int], Hashable] = {}
    names: list[dict[int, Hashable]] = [{} for _ in traces]
    for key, roots in reversed(same.items()):  # a variable belongs to the first of several
        for root in roots:
            identity[root.trace, root.place] = key
            names[root.trace] |= {index: (key, own) for index, own in root.variables.items()}
    optimizers = [[*_identities(data, trace, identity)] for trace, data in enumerate(traces)]
    variables = [
        [named.get(index, variable) for index, variable in enumerate(data.variables)]
        for data, named in zip(traces, names, strict=True)
    ]
    return optimizers, variables, doubts


def _roots(traces: Sequence[TraceData]) -> Iterator[Root]:
    numbered = cache(_numbered)  # the same on most workers
    for trace, data in enumerate(traces):
        gets: dict[int, set[int]] = defaultdict(set)
        others: dict[int, set[int]] = defaultdict(set)
        for block in chain(data.blocks, data.calls):
            gets[block.root].update(*(entry.variables for entry in block.entries))
        for row in data.not_updated:
            others[row.root].update(row.variables)
        outermost = [index for index, each in enumerate(data.optimizers) if each.root == index]
        if len(outermost) == 1:  # also those of which other ranks hold all elements
            gets[outermost[0]] |= {*range(len(data.variables))} - others[outermost[0]]
        for index in outermost:
            variables = numbered(data.variables, tuple(sorted(gets[index] | others[index])))
            own = frozenset(variables[variable] for variable in gets[index])
            yield Root(trace, index, data.optimizers[index], variables, own, data.finished)


def _numbered(variables: Sequence[Variable], used: Sequence[int]) -> dict[int, Variable]:
    names = distinct(without_number(variables[index].name) for index in used)
    named = zip(used, names, strict=True)
    return {index: replace(variables[index], name=name) for index, name in named}


def _is_certain(family: Sequence[Root]) -> bool:
    """True if the numbers of the optimizers that one line made say which are the same.

    The line made as many on each worker, unless a worker was killed, and optimizers of one number
    have a variable in common.
    """
    numbers: dict[int, list[Root]] = defaultdict(list)
    for root in family:
        numbers[root.record.made_as[0]].append(root)
    most = max(root.record.made_as[1] for root in family)
    if any(root.finished and root.record.made_as[1] < most for root in family):
        return False
    for roots in numbers.values():
        first, *others = [root.gets for root in roots if root.gets] or [frozenset()]
        if len({root.trace for root in roots}) < len(roots) or any(map(first.isdisjoint, others)):
            return False
    return True


def _identities(
    data: TraceData, trace: int, identity: dict[tuple[int, int], Hashable]
) -> Iterator[Hashable]:
    """Yield the identity of each optimizer: that of its root, its class, and its place."""
    times = Counter[Hashable]()
    for optimizer in data.optimizers:
        key = identity.get((trace, optimizer.root)), optimizer.class_name
        times[key] += 1
        yield *key, times[key]
