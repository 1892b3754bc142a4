"""Compares two traces, and matches their optimizers and variables.

`differences` lists `Change`s between `Amount`s: of steps, variables, step runs and total counts of
methods. Keras numbers layers in the order in which a process makes them, so the same model may have
other names in another run, or more layers. `matched` pairs them nevertheless.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, islice, product
from operator import itemgetter
from typing import NamedTuple

from tracer.model import callers, measures, rates
from tracer.model.phrases import class_of, replica_names, replica_noun, steps_label
from tracer.model.records import Line, Variable
from tracer.model.runs import Run
from tracer.model.summary import Pattern, Summary, summaries_of
from tracer.model.timeline import Timeline
from tracer.model.trace import Trace
from tracer.model.words import some

Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class Pair:
    """An optimizer in both traces."""

    before: Summary
    after: Summary
    variables: list[tuple[str, int | None, int | None]]
    """(name, index before, index after) of each variable; None if missing there. The name is the
    second trace's if possible; variables in both come first, in its order."""
    renamed: list[tuple[str, str]]
    """Layers that have another name, and were matched by order and shapes."""
    reshaped: list[tuple[Variable, Variable]]
    """Variables of the same name with different shapes."""


def matched(before: Trace, after: Trace) -> tuple[list[Pair], list[tuple[Summary, str]]]:
    """Match the optimizers and variables of two traces.

    Optimizers match by class, then by the names of their variables, or else by order. Variables
    match by name; if layers are numbered differently, as in a process that made other models
    before, by order and shapes. Keras 2 names a variable by its layer and Keras 3 by the whole
    path, so optimizers of different kinds also match by the ends of names. An optimizer in one
    trace only is returned with `first` or `second`.
    """
    old, new = summaries_of(before), summaries_of(after)
    pairs = []
    for key in (class_name, short_class, lambda each: ""):
        for one in old.copy():
            alike = [each for each in new if key(each) == key(one)]
            for other in sorted(alike, key=lambda each: -len(_names(one) & _names(each)))[:1]:
                old.remove(one)
                new.remove(other)
                pairs.append(_pair(one, other))
    return pairs, [*((each, "first") for each in old), *((each, "second") for each in new)]


def _names(summary: Summary) -> set[str]:
    return {summary.trace.variables[index].name for index in summary.variables}


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
    """Return the name in `before` for each variable of `after`, matched by layers and shapes.

    Layers match if they differ only in their numbers; if `ends`, also if one is named by the end of
    the other's path: `sequential/dense`.

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
    """The part of a name that Keras numbers: all but the last word, or the only word."""
    return name.rpartition("/")[0] or name


_Layers = dict[str, dict[str, Shape]]
"""The shapes of each layer's variables, by the rest of their names."""
_NUMBER = re.compile(r"(?:_(\d+))?(/|$)")


def _by_words(shapes: Mapping[str, Shape]) -> dict[str, _Layers]:
    """The layers by their names without numbers; `dense_2` sorts before `dense_10`."""
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


def _in_order(own: _Layers, others: _Layers) -> dict[str, str]:
    """Pair each of `others` with the next of `own` that has the same shapes; each is in one pair.

    If one trace has all layers of the other, each keeps its name: a layer was added or removed.
    """
    found = {name: name for name in own if name in others and _fit(own[name], others[name])}
    if len(found) < min(len(own), len(others)):
        found = {}
        for layer, shapes in own.items():
            fitting = (e for e in others if e not in found and _fit(shapes, others[e]))
            found |= dict.fromkeys(islice(fitting, 1), layer)
    return found


def _fit(own: Mapping[str, Shape], other: Mapping[str, Shape]) -> bool:
    """Whether two layers share names of variables, and all shared names have equal shapes."""
    both = own.keys() & other.keys()
    return bool(both) and all(_same_shape(own[name], other[name]) for name in both)


def _same_shape(one: Shape, other: Shape) -> bool:
    """Whether two shapes are equal where both are known."""
    return len(one) == len(other) and all(
        a == b or None in (a, b) for a, b in zip(one, other, strict=True)
    )


# Differences.

_MAX_STRETCHES = 3
"""The most stretches of steps that are named for a variable."""


@dataclass(frozen=True)
class Change:
    """A count that differs, with the steps; None if a trace lacks it."""

    name: str
    before: int | None
    after: int | None
    where: str = ""
    replica: str = ""
    """`rank 1` or `each of 3 ranks`, if not all replicas changed alike; empty for all together."""


@dataclass
class Difference:
    """The differences between the traces of two optimizers; false if all counts are equal.

    Also has the lines that the updates come from, which do not count as a difference.
    """

    title: str
    same: list[str] = field(default_factory=list)
    """The equal counts as texts: `8 steps`, `4 updates a step`."""
    one_sided: list[str] = field(default_factory=list)
    """Items that only one of the traces has, as texts."""
    renamed: list[tuple[str, str]] = field(default_factory=list)
    """Layers that have another name, and were matched by order and shapes."""
    reshaped: list[str] = field(default_factory=list)
    """Variables of the same name with different shapes, as texts; no difference in counts."""
    changes: dict[str, list[Change]] = field(default_factory=dict)
    """By kind of count: `steps`; `updates` of each variable; the steps that left a variable
    `unchanged` or `not_finite`; all updates in `runs` of steps; `methods`; or `callers`."""
    rates: tuple[str, str] = ("", "")
    """The sentences on learning rates and decays, if they differ; not a count."""
    shifted: list[tuple[str, str]] = field(default_factory=list)
    """Program lines with another number that lead to the same."""
    several: str = ""
    """What the counts of a step are summed over: `replicas` or `ranks`; empty for one."""
    noun: str = "variable"
    """The users' word for what the optimizer updates."""

    def __bool__(self) -> bool:
        counts = (changes for what, changes in self.changes.items() if what != "callers")
        return bool(self.one_sided) or any(counts)


def differences(before: Trace, after: Trace) -> list[Difference]:
    """The differences between the matched optimizers of two traces: see `matched`."""
    pairs, alone = matched(before, after)
    return [*map(_difference, pairs), *map(_alone, alone)]


def _alone(alone: tuple[Summary, str]) -> Difference:
    summary, which = alone
    only = f"the optimizer {class_name(summary)} is only in the {which} trace"
    return Difference(summary.optimizers[0].name, one_sided=[only])


def _difference(pair: Pair) -> Difference:
    before, after = pair.before, pair.after
    names = dict.fromkeys(each.optimizers[0].name for each in (before, after))
    of_callers, shifted = _callers(before, after)
    changes = {
        "steps": _changed(pair, _steps(before, after), _steps(after, before)),
        "runs": _on_replicas(
            pair,
            lambda one, other: _differing(
                pair, _counted(before, _UPDATES, one), _counted(after, _UPDATES, other)
            ),
        ),
        "methods": _on_replicas(
            pair,
            lambda one, other: _changed(
                pair, _methods(pair, before, one), _methods(pair, after, other)
            ),
        ),
        "callers": of_callers,
    }
    effects = _EFFECTS if before.effects and after.effects else {}
    for what, by in {"updates": _UPDATES, **effects}.items():
        changes[what] = _by_variable(pair, by)
    several = [replica_noun(e.trace) for e in (before, after) if len(e.replicas) > 1]
    only = [
        f"{name} is only in the {'first' if other is None else 'second'} trace"
        for name, index, other in pair.variables
        if None in (index, other)
    ]
    found = {what: list(each) for what, each in changes.items()}
    return Difference(
        " and ".join(names),
        same=list(_same(pair, found)),
        one_sided=[*_classes(class_name(before), class_name(after)), *only],
        renamed=pair.renamed,
        reshaped=[
            f"{a.name} is {list(a.shape)} in the first and {list(b.shape)} in the second"
            for a, b in pair.reshaped
        ],
        changes=found,
        rates=_rates(before, after),
        shifted=shifted,
        several=f"{several[0]}s" if several else "",
        noun=before.dialect.variable,
    )


def _rates(before: Summary, after: Summary) -> tuple[str, str]:
    """The sentences on the rates, if both are known and differ in more than sampling."""
    one, other = (rates.sentence(each, brief=False) for each in (before, after))
    sampled = re.compile(r"at least [\d,]+ values")
    same = sampled.sub("", one) == sampled.sub("", other)
    return ("", "") if same or not (one and other) else (one, other)


def _same(pair: Pair, changes: Mapping[str, Sequence[Change]]) -> Iterator[str]:
    before, after = pair.before, pair.after
    if not (before.trace.complete and after.trace.complete):
        return
    each = f" on each {replica_noun(after.trace)}" if len(after.replicas) > 1 else ""
    if not changes["steps"] and after.steps:
        yield some(after.steps, "step") + (each if len({*after.steps_on.values()}) == 1 else "")
    a_step = {
        count
        for summary in (before, after)
        for replica in summary.replicas
        for (count,) in summary.spread(measures.updates, replica=replica)
    }
    if len(a_step) == 1 and a_step != {0}:
        yield f"{some(a_step.pop(), 'update')} a step{each}"
    both = sum(None not in each for each in pair.variables)
    if number := both - len({change.name for change in changes["updates"]}):
        of = "" if number == both else f"{number:,} of "
        yield f"the updates of {of}{some(both, after.dialect.variable)}"


def _classes(before: str, after: str) -> list[str]:
    differ = f"the class is {before} in the first and {after} in the second"
    return [differ] if before != after else []


# Counts.


class Amount(NamedTuple):
    """A total, and the known steps with the count in each."""

    total: int
    dense: Sequence[tuple[Run, int]] = ()
    sparse: Sequence[tuple[Run, int]] = ()


_NONE = Amount(0)
_UPDATES = measures.dense, measures.sparse
_EFFECTS = {
    "unchanged": (measures.observing("unchanged"),),
    "not_finite": (measures.observing("not_finite"),),
}

Counts = Mapping[str, Amount]


def _steps(summary: Summary, other: Summary) -> Counts:
    """The steps, by replica if either trace has several."""
    if max(len(summary.replicas), len(other.replicas)) < 2:
        return {"in all": Amount(summary.steps)}
    names = replica_names(summary.trace, other.trace)
    return {names[index]: Amount(summary.steps_on[index]) for index in summary.replicas}


def _methods(pair: Pair, summary: Summary, replica: int | None) -> Counts:
    """The counts of each method; for optimizers of different kinds, of methods that both have."""
    both = (
        {each.trace.methods[index].name for index in each.methods}
        for each in (pair.before, pair.after)
    )
    kinds = {each.optimizers[0].kind for each in (pair.before, pair.after)}
    names = set.union(*both) if len(kinds) == 1 else set.intersection(*both)
    return {
        f"{name}: {what}": Amount(count)
        for index in summary.methods
        if (name := summary.trace.methods[index].name) in names
        for what, count in zip(
            ("executions", "eager calls", "calls while tracing"),
            (
                summary.total(measures.of_methods([index]), replica),
                *summary.calls(index, replica),
            ),
            strict=True,
        )
    }


def _counted(
    counts: Summary | Pattern, by: Sequence[measures.Measure], replica: int | None
) -> Amount:
    """The total of these measures, and their steps, on one replica or on all."""
    return Amount(
        sum(counts.total(each, replica) for each in by), *(counts.runs(e, replica) for e in by)
    )


# Changes.


def _by_variable(pair: Pair, by: Sequence[measures.Measure]) -> Iterator[Change]:
    """Yield the changes of each variable that both traces have."""
    old, new = _pattern_of(pair.before), _pattern_of(pair.after)

    def counted(pattern: Pattern | None, replica: int | None) -> Counts:
        return {"": _counted(pattern, by, replica)} if pattern else {}

    @cache  # many variables share a pattern
    def changed(one: Pattern | None, other: Pattern | None) -> list[Change]:
        return [*_on_replicas(pair, lambda *on: _changed(pair, *map(counted, (one, other), on)))]

    for name, index, place in pair.variables:
        if None not in (index, place):
            yield from (
                replace(change, name=name) for change in changed(old.get(index), new.get(place))
            )


def _pattern_of(summary: Summary) -> Mapping[int | None, Pattern]:
    return {index: pattern for pattern in summary.patterns for index in pattern.variables}


def _on_replicas(
    pair: Pair, changes: Callable[[int | None, int | None], Iterator[Change]]
) -> Iterator[Change]:
    """Yield the changes on all replicas together, and on each where they are not the same on all.

    `changes` gets the index of a replica in both traces, or None for all replicas. If the traces
    have other replicas, only all together are compared.
    """
    traces = pair.before.trace, pair.after.trace
    names = replica_names(*traces), replica_names(*traces[::-1])
    alike = sorted(names[0]) == sorted(names[1])
    whole = {change.name: change for change in changes(None, None)}
    on = {
        name: {change.name: change for change in changes(index, names[1].index(name))}
        for index, name in enumerate(names[0] if alike and len(names[0]) > 1 else ())
    }
    for what in dict.fromkeys(chain(whole, *on.values())):
        every = [each.get(what) for each in on.values()]
        if what in whole and (not any(every) or len(set(every)) == 1):
            yield whole[what]
            continue
        groups: dict[Change, list[str]] = {}
        for name, change in zip(on, every, strict=True):
            if change:
                groups.setdefault(change, []).append(name)
        for change, group in groups.items():
            each = f"each of {len(group):,} {replica_noun(traces[0])}s"
            yield replace(change, replica=each if len(group) > 1 else group[0])


def _changed(pair: Pair, before: Counts, after: Counts) -> Iterator[Change]:
    for name in dict.fromkeys((*before, *after)):
        one, other = before.get(name), after.get(name)
        if one != other:
            stretches = list(_differing(pair, one or _NONE, other or _NONE))
            rest = len(stretches) - _MAX_STRETCHES
            where = [
                *map(_words, stretches[:_MAX_STRETCHES]),
                *([f"and {rest} more"] if rest > 0 else []),
            ]
            totals = one and one.total, other and other.total
            if where or totals[0] != totals[1]:
                yield Change(name, *totals, "; ".join(where))


def _differing(pair: Pair, one: Amount, other: Amount) -> Iterator[Change]:
    """Yield the steps in which dense or sparse updates differ."""
    weighted = [
        (run, tuple(times * (place == each) for each in range(4)))
        for place, runs in enumerate((one.dense, one.sparse, other.dense, other.sparse))
        for run, times in runs
    ]
    last = pair.before.steps, pair.after.steps
    for steps, values in Timeline.of(weighted, max(last), 4).parts():
        dense, sparse, dense_after, sparse_after = values
        if values[:2] != values[2:]:
            before, after = dense + sparse, dense_after + sparse_after
            kinds = f"dense {dense} to {dense_after}, sparse {sparse} to {sparse_after}"
            yield Change(
                steps_label(steps),
                None if steps.first > last[0] else before,
                None if steps.first > last[1] else after,
                kinds if before == after else "",
            )


def _words(change: Change) -> str:
    """`0 to 2 in step 33`, or `2 in steps 34-60, which only the first trace has`."""
    where = f"{'step' if change.name.replace(',', '').isdecimal() else 'steps'} {change.name}"
    if change.before is None or change.after is None:
        count, which = (
            (change.before, "first") if change.after is None else (change.after, "second")
        )
        return f"{count:,} in {where}, which only the {which} trace has"
    return f"{change.where or f'{change.before:,} to {change.after:,}'} in {where}"


# Callers.

Path = tuple[Line, ...]
"""The program lines on a path; empty if unknown."""


def _callers(before: Summary, after: Summary) -> tuple[list[Change], list[tuple[str, str]]]:
    """Return the lines whose updates differ, and the lines that moved.

    If functions are called from as many lines as before, the lines are paired in order: all of
    them, or only those that changed, whichever differs less. Otherwise, lines with equal numbers
    are paired. Empty if a trace knows no callers.
    """
    if not (before.trace.data.paths and after.trace.data.paths):
        return [], []
    old, new = _updates_by_path(before), _updates_by_path(after)
    by_functions: dict[tuple[tuple[str, str], ...], list[Path]] = {}
    for path in dict.fromkeys((*old, *new)):
        functions = tuple((line.file, line.function) for line in path)
        by_functions.setdefault(functions, []).append(path)
    moved: dict[tuple[str, str], None] = {}
    differing: list[tuple[Path, Path]] = []
    for paths in by_functions.values():
        paths.sort(key=lambda path: [line.number for line in path])
        ways = []
        for known in (paths, [path for path in paths if old.get(path) != new.get(path)]):
            gone, come = ([path for path in known if path in counts] for counts in (old, new))
            alike = (gone, come) if len(gone) == len(come) else (known, known)
            pairs = [*zip(*alike, strict=True)]
            ways.append((sum(old.get(one) != new.get(other) for one, other in pairs), pairs))
        for one, other in min(ways, key=itemgetter(0))[1]:
            if old.get(one) != new.get(other):
                differing.append((one, other))
            else:
                lines = zip(one, other, strict=True)
                labels = ((callers.label(was), callers.label(now)) for was, now in lines)
                moved |= dict.fromkeys(both for both in labels if both[0] != both[1])
    changes = [
        Change(
            " > ".join(map(callers.label, other or [callers.UNKNOWN])), old.get(one), new.get(other)
        )
        for one, other in differing
    ]
    return changes, list(moved)


def _updates_by_path(summary: Summary) -> dict[Path, int]:
    """The updates by path of program lines, in the order of the lines."""
    data = summary.trace.data
    counts: Counter[Path] = Counter()
    for block in summary.by_path():
        if number := measures.updates(block) * block.total:
            lines = callers.lines_of(data, block.path)
            counts[tuple(line for line in lines if line.file)] += number
    ordered = sorted(counts, key=lambda path: [(line.file, line.number) for line in path])
    return {path: counts[path] for path in ordered}
