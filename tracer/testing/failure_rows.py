"""What differs from what is expected, and the table of it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from typing import Any, NamedTuple

from tracer.layout import Column, Row, Table, shown
from tracer.model.measures import (
    KINDS,
    Selection,
    ineffective,
    missing,
    observing,
    requests,
    updates,
)
from tracer.model.phrases import replica_ids, replica_names, steps_label
from tracer.model.records import OBSERVATIONS
from tracer.model.summary import Counts, Pattern, Summary
from tracer.model.timeline import Steps, Timeline, Values
from tracer.model.words import dialect_of, first_of, first_true, listed, plural, some, span
from tracer.testing.expected import Claim

WIDTH = 76  # pytest indents a message by 4
MAX_NAMES = 3
"""The most names in a sentence, and the most stretches of steps in a row."""

_MAX_ROWS = 30
_MISSED = (missing, requests, ineffective)
"""What is counted to say why there was no update: see `why_none`."""


class Difference(NamedTuple):
    """What some steps did to a variable on one replica, where that is not as in most steps."""

    first: int
    """The first of the steps."""
    variable: int
    """Its index; -1 for a step method."""
    name: str
    steps: tuple[Steps, ...]
    counts: Values
    """What each of the steps counts, in the columns of the table."""
    note: str


def why_none(made: int, missed: Sequence[int], otherwise: str = "not handed over") -> str:
    """Why there was no update, from what `_MISSED` counts; empty if one was `made`."""
    none, requested, vain = missed
    return first_true(
        (made, ""),
        (vain, "nothing was assigned"),
        (requested, "not applied"),
        (none, "no gradient"),
        (True, otherwise),
    )


def columns_of(claim: Claim) -> dict[str, Selection]:
    """What is counted of each variable in a table, or of a step method."""
    counted = replace(claim.selection, variables=None)
    if claim.of_steps or not claim.of_work:
        return {claim.expected.what.replace("_", " "): counted}
    return {each: replace(counted, kinds=frozenset({each})) for each in KINDS[:2]}


class JudgedSteps:
    """The steps of an optimizer, on all replicas together or on one, and which of them are wrong.

    All steps are wrong if what is wrong is their sum.
    """

    def __init__(self, claim: Claim, summary: Summary, replica: int | None) -> None:
        self.claim, self.summary, self.replica = claim, summary, replica
        self._replicas = summary.replicas if replica is None else (replica,)
        asserted = [replace(claim.selection, kinds=each.kinds) for each in claim.expected.wanted]
        others = (replace(e, variables=claim.selection.variables) for e in (requests, ineffective))
        self._measures = [*asserted, claim.selection, *others]

    @property
    def name(self) -> str:
        """`adam#2 on replica 1`; empty for all replicas of the only optimizer."""
        trace, of_several = self.claim.trace, len(self.claim.summaries) > 1
        names = [self.summary.optimizers[0].name] if of_several else []
        names += [] if self.replica is None else [trace.derived(replica_names)[self.replica]]
        return shown(" on ".join(names))

    @cached_property
    def timeline(self) -> Timeline:
        """Of each step the asserted counts, then what was executed, requested and in vain."""
        return self.summary.timeline(*self._measures, replica=self.replica)

    @cached_property
    def wrong(self) -> frozenset[Values]:
        """What wrong steps count. A step without any work is none if the steps of some are lost."""
        expected, lost = self.claim.expected, self.summary.step_unknown(self.claim.selection)
        wrong = (each for each in self.timeline.spread if not expected.is_right(each))
        return frozenset(each for each in wrong if not lost or any(each[-3:-1]))

    @cached_property
    def unapplied_steps(self) -> tuple[Steps, ...]:
        """The wrong steps in which gradients came, and none was applied."""
        wrong = self.wrong if self.claim.of_work else ()
        unapplied = {each for each in wrong if each[-2] and not (each[-3] or each[-1])}
        return self.timeline.steps_with(unapplied)

    @cached_property
    def short(self) -> bool:
        """Whether a count is too small."""
        wanted = self.claim.expected.wanted
        totals = tuple(self.claim.total(each, self.replica) for each in wanted)
        counts = (self.claim.expected.per_step and self.wrong) or {totals}
        return any(of[at] < (each.low or 0) for of in counts for at, each in enumerate(wanted))

    def got(self, number: int) -> str:
        """`got 0 in step 33 of 64`, or `got 0 to 3 in 12 of 64 steps`; empty if no step is wrong.

        `number` is the place of the asserted count.
        """
        spread, holds = self.timeline.spread, self.claim.expected.wanted[number].holds
        wrong = {values: times for values, times in spread.items() if not holds(values[number])}
        steps, times = sum(spread.values()), sum(wrong.values())
        if self.summary.steps and not steps:
            return "but no step ran"
        measure = replace(self._measures[number], replicas=frozenset(self._replicas))
        counts = sorted({values[number] for values in wrong}) or [0]
        text = span((counts[0], counts[-1])).replace("to", "or" if len(counts) == 2 else "to")
        first = next(self.timeline.spans(wrong.__contains__), (0,))[0]
        said = first_true(
            (not wrong, ""),
            (times == 1, f"{text} in step {first:,} of {steps:,}"),
            (times == steps, f"{text} in each of {steps:,} steps"),
            (True, f"{text} in {times:,} of {steps:,} steps"),
        )
        outside = self.summary.outside(measure)
        texts = [f"{outside:,} outside any step"] * (outside > 0) + [said] * bool(wrong)
        return f"got {' and '.join(texts)}" if texts else ""

    def rows(self) -> Iterator[tuple[Difference, int]]:
        """What wrong steps did to each variable, each with its replica, unless that is usual."""
        claim, columns = self.claim, [*columns_of(self.claim).values()]
        of = f"{shown(self.summary.optimizers[0].name)}: " if len(claim.summaries) > 1 else ""
        beside = cache(self.timeline.beside)  # most variables got the same in each step
        for replica in filter(self.summary.steps_on.get, self._replicas if self.wrong else ()):
            for counted, names in self._counted():
                own = counted.timeline(*columns, *_MISSED, replica=replica)
                for steps, counts in self._unusual(beside(own)):
                    made, missed = counts[: len(columns)], counts[len(columns) :]
                    noted = claim.of_work and (claim.selection.methods is None or missed[0])
                    note = why_none(sum(made), missed) if noted else ""
                    for index, name in names.items():
                        place = steps[0].first, index, of + name
                        yield Difference(*place, steps, made, note), replica

    def _counted(self) -> Iterator[tuple[Counts, Mapping[int, str]]]:
        """What is counted, with the variables that it is of; -1 stands for a step method."""
        selection, names = self.claim.selection, self.claim.trace.variables
        if self.claim.of_steps and selection.variables is None:
            yield self.summary, {-1: self.claim.expected.method or ""}
            return
        patterns = [each for each in self.summary.patterns if each.has(selection)]
        if selection.methods is None or not patterns:
            asked = (selection, *_MISSED)
            patterns = [each for each in self.summary.patterns if any(map(each.has, asked))]
        for pattern in patterns:
            yield pattern, {at: names[at].name for at in selection.kept(pattern.variables)}

    def _unusual(self, timeline: Timeline) -> Iterator[tuple[tuple[Steps, ...], Values]]:
        """The wrong steps in which a variable gets other than in most steps, and what it gets.

        The timeline has the asserted counts and what `timeline` has besides, then those.
        """
        size = len(self._measures)
        alike: dict[Values, set[Values]] = {}
        usual: Counter[Values] = Counter()
        for values, number in timeline.spread.items():
            if values[:size] in self.wrong:
                alike.setdefault(values[size:], set()).add(values)
            else:
                usual[values[size:]] += number
        for counts in alike.keys() - dict(usual.most_common(1)).keys():
            if self.short or self.claim.expected.per_step or any(counts[: -len(_MISSED)]):
                yield timeline.steps_with(alike[counts]), counts


def rows_of(parts: Iterable[JudgedSteps]) -> dict[Difference, list[int]]:
    """The rows of all parts, each with its replicas."""
    rows: dict[Difference, list[int]] = {}
    for row, replica in (each for part in parts for each in part.rows()):
        rows.setdefault(row, []).append(replica)
    return rows


def table_of_work(claim: Claim, rows: Mapping[Difference, Sequence[int]]) -> list[str]:
    """The rows that differ, each with its replicas, and what ran outside any step."""
    columns, several = columns_of(claim), len(claim.trace.replicas) > 1
    in_all = [] if claim.expected.per_step else ["in all"]
    noun = dialect_of(claim.trace.data).variable
    every = {index for each in claim.summaries for index in each.variables}
    alike: dict[tuple[Any, ...], list[str]] = {}
    for row in sorted(rows):
        same = row.steps, row.counts, row.note, tuple(rows[row])
        alike.setdefault(same, []).append(row.name)
    lines = []
    for (steps, counts, note, replicas), names in alike.items():
        total = sum(counts) * sum(each.number for each in steps) * len(replicas) * len(names)
        on = [_ids(claim, replicas)] * several
        cells = [label(steps), *on, *counts, *[total for _ in in_all]]
        of_all = len(names) == len(every) > 1 and claim.selection.variables is None
        lines.append(row_of(f"each {noun}" if of_all else listed(names, 2), cells, note))
    for summary in claim.summaries if not claim.of_steps else ():
        outside = [summary.outside(each) for each in columns.values()]
        if any(outside):
            cells = [*"-" * (1 + several), *outside, *[sum(outside) for _ in in_all]]
            lines.append(row_of("outside any step", cells, "a direct call"))
    header = "method" if claim.of_steps else noun
    return as_lines(header, ["per step", *["replica"] * several, *columns, *in_all], lines)


def table_of_calls(claim: Claim) -> list[str]:
    """How often what was called, by its name and the context."""
    calls, contexts = claim.calls(), ["eager", "tracing"]
    names = dict.fromkeys(name for name, _ in calls)
    rows = [row_of(name, [calls.get((name, each), 0) for each in contexts]) for name in names]
    return as_lines("calls of", contexts, rows)


def rows_of_missed(claim: Claim) -> list[tuple[str, Row]]:
    """The targets that were not updated, or not changed, with what each got instead."""
    missed = []
    for target in claim.expected.targets or ():
        patterns = [] if target.index is None else claim.patterns_of.get(target.index, [])
        made, *counts = (sum(each.total(of) for each in patterns) for of in (updates, *_MISSED))
        traced = any(each.entries for each in patterns)
        nothing = "never handed to the optimizer" if claim.trace.complete else "not seen"
        note = why_none(made, counts, "its graph never ran" if traced else nothing)
        if claim.expected.what == "changes":
            note = _why_not_changed(claim, target.index, patterns, made)
        if note:
            missed.append((target.name, row_of(target.name, counts[1::-1], note)))
    return missed


def _why_not_changed(
    claim: Claim, index: int | None, patterns: Sequence[Pattern], made: int
) -> str:
    """Why some replica that was handed a variable did not change it; empty if each did."""
    replicas = range(len(claim.trace.replicas))
    compared, unchanged = (
        [sum(each.total(observing(what), on) for each in patterns) for on in replicas]
        for what in OBSERVATIONS[:2]
    )
    still = [on for on in replicas if unchanged[on] == compared[on] > 0]
    if not still or (index is not None and 0 in claim.trace.variables[index].shape):
        return "" if any(compared) else "never handed over"
    some_changed = any(compared[on] for on in replicas if on not in still)
    on = f" on replica {claim.trace.replicas[still[0]].id}" if some_changed else ""
    return f"no bit changed{on}" if made else "never updated"


def row_of(name: str, cells: Iterable[object], note: str = "") -> Row:
    """A row with these texts and numbers."""
    texts = (f"{each:,}" if isinstance(each, int) else str(each) for each in cells)
    return Row(shown(name) or "''", tuple(texts), note)


def _ids(claim: Claim, replicas: Sequence[int]) -> str:
    """`0, 1`, or `all 8`."""
    ids = replica_ids(claim.trace)
    names = shown(first_of([ids[index] for index in replicas], MAX_NAMES))
    return f"all {len(ids):,}" if len(replicas) == len(ids) > MAX_NAMES else names


def label(steps: Sequence[Steps]) -> str:
    """The steps as text; of many stretches the first are named.

    >>> label([Steps(1, 15, 3, 4), Steps(20, 20, 1), Steps(24, 25, 2), Steps(31, 33, 3)])
    '1-3, 5-7 … 13-15, 20, 24-25 and 3 more'
    """
    names = ", ".join(map(steps_label, steps[:MAX_NAMES]))
    rest = sum(each.number for each in steps[MAX_NAMES:])
    return f"{names} and {rest:,} more" if rest else names


def in_steps(steps: Sequence[Steps]) -> str:
    """`step 33`, or `steps 1-3, 5-7 … 13-15`."""
    return f"{plural(sum(each.number for each in steps), 'step')} {label(steps)}"


def as_lines(header: str, columns: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """The table with these rows, or with the first of them if they are many; none without rows."""
    ranked = sorted(range(len(rows)), key=lambda index: (not rows[index].note, index))
    kept = [rows[index] for index in sorted(ranked[:_MAX_ROWS])]  # the odd ones first
    below = [f"… and {some(len(rows) - _MAX_ROWS, 'more row')}"] * (len(rows) > _MAX_ROWS)
    named = [Column(each, left=each in ("per step", "replica")) for each in columns]
    table = Table(header, named, kept, below=below)
    return [line.plain for line in table.lines(WIDTH)] if rows else []
