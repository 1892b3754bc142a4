"""What is different between two traces: steps, variables, step runs and methods. No TensorFlow."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from tracer.model import tally
from tracer.model.labels import labelled
from tracer.model.records import Run
from tracer.model.tally import Stretch, Tally, Values
from tracer.model.trace import Trace

_FEW = 3
"""The stretches of steps that are named for a variable."""


@dataclass(frozen=True)
class Change:
    """A count that is not the same, with where it differs; None where there is no such thing."""

    name: str
    before: int | None
    after: int | None
    where: str = ""


@dataclass
class Difference:
    """How two optimizers' traces differ; without a change in it they count the same."""

    title: str
    only: list[str] = field(default_factory=list)
    """What is there in one of the two only, in words."""
    renamed: list[tuple[str, str]] = field(default_factory=list)
    """Layers that are numbered differently, and were matched in their order."""
    steps: list[Change] = field(default_factory=list)
    """By replica."""
    variables: list[Change] = field(default_factory=list)
    runs: list[Change] = field(default_factory=list)
    """Updates in steps, equal neighbours together."""
    methods: list[Change] = field(default_factory=list)

    def __bool__(self) -> bool:
        return any((self.only, self.steps, self.variables, self.runs, self.methods))


def differences(before: Trace, after: Trace) -> list[Difference]:
    """How each optimizer of the one trace differs from that of the other, in their order.

    Optimizers are matched by class, else by order; variables by name or, where the layers are
    numbered differently, as Keras does in a process that made others before, by their order.
    """
    return [_compare(a, b) for a, b in _optimizers(before, after)]


def _optimizers(before: Trace, after: Trace) -> Iterator[tuple[Tally | None, Tally | None]]:
    ours, theirs = tally.tallies(before), tally.tallies(after)
    left: list[Tally] = []
    for mine in ours:
        same = (other for other in theirs if _class(other) == _class(mine))
        found = next(same, None)
        if found is None:
            left.append(mine)
        else:
            theirs.remove(found)
            yield mine, found
    yield from zip_longest(left, theirs)


def _class(found: Tally) -> str:
    return found.optimizers[0].class_name


def _compare(a: Tally | None, b: Tally | None) -> Difference:
    if a is None or b is None:
        one = a or b
        assert one is not None
        which = "first" if b is None else "second"
        said = f"the optimizer {_class(one)} is only in the {which} trace"
        return Difference(one.optimizers[0].name, only=[said])
    title = a.optimizers[0].name
    if b.optimizers[0].name != title:
        title += f" and {b.optimizers[0].name}"
    found = Difference(title)
    if _class(a) != _class(b):
        found.only.append(f"the class is {_class(a)} in the first and {_class(b)} in the second")
    found.steps = list(_steps(a, b))
    pairs, found.renamed, single = match(
        [a.trace.variables[index].name for index in a.variables],
        [b.trace.variables[index].name for index in b.variables],
    )
    found.only += single
    found.variables = list(_variables(a, b, pairs))
    found.runs = list(_runs(a, b))
    found.methods = list(_methods(a, b))
    return found


def _steps(a: Tally, b: Tally) -> Iterator[Change]:
    counts: list[dict[str, int]] = [
        {
            f"{each.worker + ', ' * bool(each.worker)}replica {each.id}": found.steps_on[index]
            for index in found.replicas
            for each in [found.trace.replicas[index]]
        }
        for found in (a, b)
    ]
    yield from _changed(*counts)


def _changed(before: dict[str, int], after: dict[str, int]) -> Iterator[Change]:
    for name in dict.fromkeys((*before, *after)):
        if before.get(name) != after.get(name):
            yield Change(name, before.get(name), after.get(name))


# Names.

_NUMBER = re.compile(r"_(\d+)(?=/|$)")


def match(
    before: Sequence[str], after: Sequence[str]
) -> tuple[list[tuple[str, str]], list[tuple[str, str]], list[str]]:
    """Pairs of variables, pairs of layers that are named differently, and what has no partner.

    >>> match(["dense_3/kernel", "dense_4/kernel"], ["dense/kernel", "dense_1/kernel"])[1]
    [('dense_3', 'dense'), ('dense_4', 'dense_1')]
    """
    to_layer = _layers(before, after)
    wanted = {_renamed(name, to_layer): name for name in before}
    pairs = [(wanted[name], name) for name in after if name in wanted]
    paired = {name for pair in pairs for name in pair}
    renamed = [
        (mine, other)
        for mine, other in to_layer.items()
        if mine != other and any(_layer(a) == mine for a, _ in pairs)
    ]
    single = [f"{name} is only in the first trace" for name in before if name not in paired]
    partners = {other for _, other in pairs}
    single += [f"{name} is only in the second trace" for name in after if name not in partners]
    return pairs, renamed, single


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
    found: dict[str, str] = {}
    for pattern, mine in groups[0].items():
        others = groups[1].get(pattern, [])
        if set(mine) <= set(others) or set(others) <= set(mine):
            found.update((name, name) for name in mine)
        else:
            found.update(
                zip(sorted(mine, key=_numbers), sorted(others, key=_numbers), strict=False)
            )
    return found


def _numbers(layer: str) -> list[int]:
    """The numbers of a layer and those around it: `dense_2` comes before `dense_10`."""
    words = (_NUMBER.search(word) for word in layer.split("/"))
    return [int(found[1]) if found else 0 for found in words]


# Counts.


def _variables(a: Tally, b: Tally, pairs: Sequence[tuple[str, str]]) -> Iterator[Change]:
    index_a = {a.trace.variables[index].name: index for index in a.variables}
    index_b = {b.trace.variables[index].name: index for index in b.variables}
    weights_a, weights_b = _weights(a), _weights(b)
    nothing: dict[int, Values] = {}
    known: dict[object, tuple[int, int, str]] = {}
    for name_a, name_b in pairs:
        mine = weights_a.get(index_a[name_a], nothing)
        other = weights_b.get(index_b[name_b], nothing)
        key = (tuple(mine.items()), tuple(other.items()))
        if key not in known:
            totals = (_total(a, mine), _total(b, other))
            stretches = _folded(a, mine, b, other)
            known[key] = (*totals, _some(list(_differing(stretches, a, b))))
        before, after, where = known[key]
        if before != after or where:
            yield Change(name_b, before, after, where)


def _weights(found: Tally) -> dict[int, dict[int, Values]]:
    """For each variable the dense and the sparse updates that one execution of a block makes."""
    weights: dict[int, dict[int, Values]] = {}
    for number, block in enumerate(found.blocks):
        for entry in block.entries:
            if entry.role == "update":
                more = (entry.times, 0) if entry.kind == "dense" else (0, entry.times)
                for index in entry.variables:
                    own = weights.setdefault(index, {})
                    dense, sparse = own.get(number, (0, 0))
                    own[number] = (dense + more[0], sparse + more[1])
    return weights


def _total(found: Tally, weights: dict[int, Values]) -> int:
    return sum(found.blocks[number].total * sum(each) for number, each in weights.items())


def _folded(a: Tally, mine: dict[int, Values], b: Tally, other: dict[int, Values]) -> list[Stretch]:
    """What each step counts in the one (dense, sparse) and in the other (dense, sparse)."""
    weighted: list[tuple[Run, Values]] = []
    for number, weights in mine.items():
        weighted += [(run, (*weights, 0, 0)) for run in a.blocks[number].runs]
    for number, weights in other.items():
        weighted += [(run, (0, 0, *weights)) for run in b.blocks[number].runs]
    return tally.folded(weighted, max(a.steps, b.steps), 4)


def _differing(stretches: Iterable[Stretch], a: Tally, b: Tally) -> Iterator[Change]:
    for stretch in stretches:
        begin = stretch.first
        for label, (length, counts) in labelled(stretch):
            dense_a, sparse_a, dense_b, sparse_b = counts
            if (dense_a, sparse_a) != (dense_b, sparse_b):
                kinds = ""
                if dense_a + sparse_a == dense_b + sparse_b:
                    kinds = f"dense {dense_a} to {dense_b}, sparse {sparse_a} to {sparse_b}"
                before = None if begin > a.steps else dense_a + sparse_a
                after = None if begin > b.steps else dense_b + sparse_b
                yield Change(label, before, after, kinds)
            begin += length


def _some(changes: Sequence[Change]) -> str:
    parts = [
        f"{each.name}: {each.where or f'{_count(each.before)} to {_count(each.after)}'}"
        for each in changes[:_FEW]
    ]
    rest = len(changes) - len(parts)
    return "; ".join([*parts, f"and {rest} more"] if rest else parts)


def _count(value: int | None) -> str:
    return "no step" if value is None else f"{value:,}"


def _runs(a: Tally, b: Tally) -> Iterator[Change]:
    weights: list[dict[int, Values]] = [
        {
            number: (tally.dense(block), tally.sparse(block))
            for number, block in enumerate(found.blocks)
            if tally.updates(block) and not block.outside
        }
        for found in (a, b)
    ]
    return _differing(_folded(a, weights[0], b, weights[1]), a, b)


def _methods(a: Tally, b: Tally) -> Iterator[Change]:
    counts: list[dict[str, int]] = []
    for found in (a, b):
        by_name: dict[str, int] = {}
        for index in found.methods:
            name = found.trace.methods[index].name
            eager, tracing = found.calls(index)
            by_name[f"{name}: executions"] = found.total(tally.of_methods([index]))
            by_name[f"{name}: eager calls"] = eager
            by_name[f"{name}: calls while tracing"] = tracing
        counts.append(by_name)
    yield from _changed(*counts)
