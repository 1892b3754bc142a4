"""What differs from what is expected, and the table of it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from itertools import count

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
from tracer.model.summary import Pattern, Summary
from tracer.model.timeline import Steps, Timeline, Values
from tracer.model.words import dialect_of, first_of, first_true, plural, some, span
from tracer.testing.expected import Claim

WIDTH = 76  # pytest indents a message by 4
MAX_NAMES = 3
"""The most names in a sentence, and the most stretches of steps in a row."""

_MAX_ROWS = 30
_MISSED = (missing, requests, ineffective)
"""What is counted to say why there was no update: see `why_none`."""

_Group = Mapping[int, str]
"""Variables that are counted together, by their indices; -1 stands for a step method, or for all
variables together."""

Difference = tuple[int, int, str, tuple[Steps, ...], Values, str]
"""What some steps did to a variable: the first of them, the variable's index and name as in
a `_Group`, the steps, what each of them counts, and a note."""


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
    if claim.of_steps or not claim.of_work:
        return {claim.expected.what.replace("_", " "): claim.selection}
    return {each: replace(claim.selection, kinds=frozenset({each})) for each in KINDS[:2]}


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
    def unapplied(self) -> frozenset[Values]:
        """What the wrong steps count in which gradients came, and none was applied."""
        wrong = self.wrong if self.claim.of_work else ()
        return frozenset(each for each in wrong if each[-2] and not (each[-3] or each[-1]))

    @cached_property
    def unapplied_steps(self) -> tuple[Steps, ...]:
        """The wrong steps in which gradients came, and none was applied."""
        return self.timeline.steps_with(self.unapplied)

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
        """What wrong steps did to each variable, each with its replica, unless that is usual.

        One row stands for each variable in the steps in which none of their gradients was applied.
        """
        claim, columns = self.claim, [*columns_of(self.claim).values()]
        of = f"{shown(self.summary.optimizers[0].name)}: " if len(claim.summaries) > 1 else ""
        one_row = claim.selection.variables is None and (self.short or claim.expected.per_step)
        unapplied = self.unapplied if one_row else frozenset()
        keys = [(group, replica) for replica in self._replicas for group in self._groups()]
        measures = (each for key in keys for each in self._counting(columns, *key))
        timeline = self.summary.timeline(*self._measures, *measures, replica=self.replica)
        steps_in = cache(timeline.steps_with)  # most groups differ in the same steps
        size, width = len(columns), len(columns) + len(_MISSED)
        work = [
            (*key, steps_in(values), counts)
            for key, at in zip(keys, count(len(self._measures), width), strict=False)
            for values, counts in self._unusual(timeline, slice(at, at + width), unapplied)
        ]
        if unapplied:
            name = f"each {self.summary.dialect.variable}"
            every = self.unapplied_steps, (*(0,) * size, 0, 1, 0)
            work += [({-1: name}, replica, *every) for replica in self._replicas]
        for group, replica, steps, counts in work:
            is_noted = claim.of_work and (claim.selection.methods is None or counts[size])
            note = why_none(sum(counts[:size]), counts[size:]) if is_noted else ""
            for index, name in group.items():
                yield (steps[0].first, index, of + name, steps, counts[:size], note), replica

    def _groups(self) -> list[_Group]:
        """The variables that are meant, those together that got the same in every step."""
        selection, names = self.claim.selection, self.claim.trace.variables
        if self.claim.of_steps and selection.variables is None:
            return [{-1: self.claim.expected.method or ""}]
        patterns = [each for each in self.summary.patterns if each.has(selection)]
        if selection.methods is None or not patterns:
            asked = (selection, *_MISSED)
            patterns = [each for each in self.summary.patterns if any(map(each.has, asked))]
        kept = (selection.kept(each.variables) for each in patterns)
        return [{index: names[index].name for index in own} for own in kept if own]

    @staticmethod
    def _counting(columns: Iterable[Selection], group: _Group, replica: int) -> list[Selection]:
        """The measures of a group on a replica: what is shown of it, then `_MISSED`."""
        only = frozenset(index for index in [*group][:1] if index >= 0)
        counted = [replace(each, variables=only or None) for each in columns]
        missed = [replace(each, variables=only) for each in _MISSED]
        return [replace(each, replicas=frozenset({replica})) for each in (*counted, *missed)]

    def _unusual(
        self, timeline: Timeline, place: slice, but: frozenset[Values]
    ) -> Iterator[tuple[frozenset[Values], Values]]:
        """What wrong steps count in which a group gets other than in most, and what it gets."""
        alike: dict[Values, set[Values]] = {}
        usual: Counter[Values] = Counter()
        for values, number in timeline.spread.items():
            asserted, counts = values[: len(self._measures)], values[place]
            if asserted not in self.wrong:
                usual[counts] += number
            elif asserted not in but:
                alike.setdefault(counts, set()).add(values)
        for counts in alike.keys() - dict(usual.most_common(1)).keys():
            if self.short or self.claim.expected.per_step or any(counts[: -len(_MISSED)]):
                yield frozenset(alike[counts]), counts


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
    lines = []
    for row in sorted(rows):
        _, _, name, steps, counts, note = row
        total = sum(counts) * sum(each.number for each in steps) * len(rows[row])
        on = [_ids(claim, rows[row])] * several
        lines.append(row_of(name, [label(steps), *on, *counts, *[total for _ in in_all]], note))
    for summary in claim.summaries if not claim.of_steps else ():
        outside = [summary.outside(each) for each in columns.values()]
        if any(outside):
            cells = [*"-" * (1 + several), *outside, *[sum(outside) for _ in in_all]]
            lines.append(row_of("outside any step", cells, "a direct call"))
    header = "method" if claim.of_steps else dialect_of(claim.trace.data).variable
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
