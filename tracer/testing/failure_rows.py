"""The table of a failure: the rows in which a trace differs from what is expected of it."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

from tracer.layout import Column, Row, Table, shown
from tracer.model.dialects import dialect_of
from tracer.model.labels import replica_ids, steps_label
from tracer.model.measures import ineffective, missing, requests
from tracer.model.records import OBSERVATIONS, Kind
from tracer.model.runs import Run, join
from tracer.model.selection import ROLES, Selection
from tracer.model.summary import Pattern, Summary
from tracer.model.timeline import Steps, Timeline, Values
from tracer.model.wording import first_of, first_true, some
from tracer.testing.expected import Claim, Wanted, of_kinds

WIDTH = 76  # pytest indents a message by 4
MAX_NAMES = 3
"""The most names in a sentence, and the most stretches of steps in a row."""

_MAX_ROWS = 30
_KINDS: tuple[Kind, ...] = ("dense", "sparse")


class Counts(NamedTuple):
    """What a step, or a whole run, did to a variable."""

    dense: int = 0
    sparse: int = 0
    none: int = 0
    """Gradients that were `None`."""
    requested: int = 0
    """Gradients that were not."""
    ineffective: int = 0
    """Executions that assigned nothing."""

    @property
    def executed(self) -> bool:
        return bool(self.dense or self.sparse)

    def note(self, otherwise: str = "not handed over") -> str:
        """Why there was no update; empty if there was one."""
        return first_true(
            (self.executed, ""),
            (self.ineffective, "nothing was assigned"),
            (self.requested, "not applied"),
            (self.none, "no gradient"),
            (True, otherwise),
        )


class Difference(NamedTuple):
    """What some steps did to one variable, or to all of them alike."""

    first: int
    """The first of the steps."""
    variable: int
    """-1 for all of them, or for a step method."""
    name: str
    steps: tuple[Steps, ...]
    counts: Counts


class Judged:
    """The steps of an optimizer, on all replicas together or on one, and which of them are wrong.

    All steps are wrong if what is wrong is their sum.
    """

    def __init__(self, claim: Claim, summary: Summary, replica: int | None) -> None:
        self.claim, self.summary, self.replica = claim, summary, replica
        failed, per_step = claim.failed, claim.expected.per_step
        replicas = summary.replicas if replica is None else (replica,)
        self._keys = [(each, on) for each in _groups(claim, summary) for on in replicas]
        wanted = [of_kinds(claim.selection, each.kinds) for each in failed]
        counted = (each for key in self._keys for each in _measures(claim.selection, *key))
        timeline = summary.timeline(*wanted, *counted, replica=replica)
        self.steps = cache(partial(steps_of, timeline))
        size, width = len(Counts._fields), len(failed)
        self._work = {
            values: [Counts(*values[at : at + size]) for at in range(width, len(values), size)]
            for values in timeline.spread
        }
        lost = summary.unplaced(claim.selection)
        right = [
            values
            for values, work in self._work.items()
            if (per_step and all(map(Wanted.holds, failed, values)))
            or (lost and not any(each.executed or each.requested for each in work))
        ]
        self.wrong = frozenset(self._work.keys() - right)
        totals = tuple(claim.total(each, replica) for each in failed)
        counts = (per_step and self.wrong) or {totals}
        self.short = any(any(map(Wanted.is_short, failed, each)) for each in counts)
        usual = max(right, key=timeline.spread.__getitem__, default=None) if per_step else None
        self._usual = [None] * len(self._keys) if usual is None else self._work[usual]

    @property
    def unapplied(self) -> frozenset[Values]:
        """The wrong steps in which gradients came, and none was applied."""
        return frozenset(
            each
            for each in self.wrong
            if any(counts.requested for counts in self._work[each])
            and not any(counts.executed or counts.ineffective for counts in self._work[each])
        )

    def rows(self) -> Iterator[tuple[Difference, int]]:
        """What wrong steps did to each variable, each with its replica, unless that is usual.

        One row stands for each variable in the steps in which none of their gradients was applied.
        """
        claim, summary = self.claim, self.summary
        of = f"{shown(summary.optimizers[0].name)}: " if len(claim.summaries) > 1 else ""
        unapplied = self.unapplied if claim.selection.variables is None else frozenset()
        for number, (variables, replica) in enumerate(self._keys):
            alike: dict[tuple[bool, Counts], set[Values]] = {}
            for values in self.wrong:
                of_all, counts = values in unapplied, self._work[values][number]
                differs = of_all or counts != self._usual[number]
                if differs and (self.short or claim.expected.per_step or counts.executed):
                    key = (True, Counts(requested=1)) if of_all else (False, counts)
                    alike.setdefault(key, set()).add(values)
            for (of_all, counts), those in alike.items():
                steps = self.steps(frozenset(those))
                for index in (-1,) if of_all else variables:
                    name = claim.expected.method or ""
                    if of_all:
                        name = f"each {summary.dialect.variable}"
                    elif index >= 0:
                        name = claim.trace.variables[index].name
                    yield Difference(steps[0].first, index, of + name, steps, counts), replica


def steps_of(timeline: Timeline, counts: Collection[Values]) -> tuple[Steps, ...]:
    """The steps with such counts; more than three stretches at equal distances are one."""
    stretches: list[Run] = []  # `times` is how many steps a stretch has
    for first, last, _ in timeline.spans(counts.__contains__):
        if stretches and stretches[-1].first + stretches[-1].times == first:
            first = stretches.pop().first
        stretches.append(Run(first, 1, 1, last - first + 1))
    found: list[Steps] = []
    for run in join(stretches):
        few = run.count <= MAX_NAMES
        for first in range(run.first, run.last + 1, run.stride) if few else [run.first]:
            last = (first if few else run.last) + run.times - 1
            found.append(Steps(first, last, run.times, None if few else run.stride))
    return tuple(found)


def _groups(claim: Claim, summary: Summary) -> list[Sequence[int]]:
    """The variables that are meant, those together that got the same in every step.

    A step method has no variables: -1 stands for it.
    """
    selection = claim.selection
    only = selection.variables
    asked = (selection, missing, requests, ineffective)
    patterns = [each for each in summary.patterns if any(map(each.has, asked))]
    groups = {each: [i for i in each.variables if only is None or i in only] for each in patterns}
    entries = (each for block in summary.blocks for each in block.entries)
    alone = only is None and any(selection.holds(e) and not e.variables for e in entries)
    executed = [own for each, own in groups.items() if own and each.has(selection)]
    if selection.methods is None or not (alone or executed):
        executed = [own for own in groups.values() if own]
    return [*executed, *([[-1]] if alone else [])]


def _measures(
    selection: Selection, variables: Sequence[int] = (), replica: int | None = None
) -> list[Selection]:
    """The measures of `Counts`, of a group of variables on a replica."""
    measures = [*(of_kinds(selection, {each}) for each in _KINDS), missing, requests, ineffective]
    only = frozenset(variables[:1]) or None
    if variables and variables[0] < 0:
        measures, only = [selection, *[Selection(roles=frozenset())] * 4], None
    on = None if replica is None else frozenset({replica})
    return [replace(each, variables=only, replicas=on) for each in measures]


def rows_of_work(judged: Iterable[Judged]) -> dict[Difference, dict[int, None]]:
    """The rows of all that was judged, each with its replicas."""
    rows: dict[Difference, dict[int, None]] = {}
    for row, replica in (each for part in judged for each in part.rows()):
        rows.setdefault(row, {})[replica] = None
    return rows


def table_of_work(claim: Claim, rows: Mapping[Difference, Iterable[int]]) -> list[str]:
    """The rows that differ, each with its replicas, and what ran outside any step."""
    in_all, several = [] if claim.expected.per_step else ["in all"], len(claim.trace.replicas) > 1
    kinds = ["executions"] if claim.of_steps else [*_KINDS]
    columns = ["per step", *["replica"] * several, *kinds, *in_all]
    lines = []
    for row in sorted(rows):
        on, counts = list(rows[row]), [*row.counts[: len(kinds)]]
        total = sum(counts) * sum(each.number for each in row.steps) * len(on)
        cells = [label(row.steps), *[_ids(claim, on)] * several, *counts, *[total for _ in in_all]]
        note = row.counts.note() if claim.selection.methods is None or row.counts.none else ""
        lines.append(_row(row.name, cells, note))
    for summary in claim.summaries:
        counts = [summary.outside(of_kinds(claim.selection, {kind})) for kind in _KINDS]
        if any(counts):
            cells = [*"-" * (1 + several), *counts, *[sum(counts) for _ in in_all]]
            lines.append(_row("outside any step", cells, "a direct call"))
    header = "method" if claim.of_steps else dialect_of(claim.trace).variable
    return as_lines(header, columns, lines)


def table_of_effects(claim: Claim) -> list[str]:
    """What was seen of each variable, and after which steps what is expected otherwise."""
    rows = []
    only, measure = claim.selection.variables, replace(claim.selection, variables=None)
    any_replicas = {(number + 1,) for number in range(len(claim.trace.replicas))}
    steps_in = cache(lambda each: steps_of(each.timeline(measure), any_replicas))
    for index, patterns in sorted(claim.patterns_of.items()):
        steps = [step for each in patterns for step in steps_in(each)]
        noun = "step" if sum(each.number for each in steps) == 1 else "steps"
        seen, note = _seen(patterns), f"in {noun} {label(steps)}" if steps else ""
        if seen[0] and (only is None or index in only):
            rows.append(_row(claim.trace.variables[index].name, seen, note))
    return as_lines("variable", [each.replace("_", " ") for each in OBSERVATIONS], rows)


def table_of_calls(claim: Claim) -> list[str]:
    """How often what was called, by its name and the context."""
    calls, contexts = claim.calls(), ["eager", "tracing"]
    names = dict.fromkeys(name for name, _ in calls)
    rows = [_row(name, [calls[name, each] for each in contexts]) for name in names]
    return as_lines("calls of", contexts, rows)


def rows_of_missed(claim: Claim) -> list[tuple[str, Row]]:
    """The targets that were not updated, or not changed, with what each got instead."""
    patterns_of, measures = claim.patterns_of, _measures(Selection(roles=ROLES["updates"]))
    missed = []
    for target in claim.expected.targets or ():
        patterns = [] if target.index is None else patterns_of.get(target.index, [])
        counts = Counts(*(sum(p.total(each) for p in patterns) for each in measures))
        if claim.expected.what == "changes":
            note = _why_not_changed(claim, target.index, patterns, counts)
            cells = [counts.dense + counts.sparse, *_seen(patterns)[:2]]
        else:
            nothing = "never handed to the optimizer" if claim.trace.complete else "not seen"
            traced = any(each.entries for each in patterns)
            note = counts.note("its graph never ran" if traced else nothing)
            cells = [counts.requested, counts.none]
        if note:
            missed.append((target.name, _row(target.name, cells, note)))
    return missed


def _why_not_changed(
    claim: Claim, index: int | None, patterns: Sequence[Pattern], counts: Counts
) -> str:
    """Why some replica that was handed a variable did not change it; empty if each did."""
    seen = {on: _seen(patterns, on) for on in range(len(claim.trace.replicas))}
    compared = {on: number for on, (number, *_) in seen.items() if number}
    still = [on for on, number in compared.items() if seen[on][1] == number]
    if not still or (index is not None and 0 in claim.trace.variables[index].shape):
        return "" if compared else "never handed over"
    on = f" on replica {claim.trace.replicas[still[0]].id}" if len(still) < len(compared) else ""
    return f"no bit changed{on}" if counts.executed else "never updated"


def _seen(patterns: Sequence[Pattern], replica: int | None = None) -> list[int]:
    """How often which of the `OBSERVATIONS` was made of a variable, on all replicas or on one."""
    return [sum(each.observed(what, replica) for each in patterns) for what in OBSERVATIONS]


def _row(name: str, cells: Iterable[object], note: str = "") -> Row:
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


def as_lines(header: str, columns: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """The table with these rows, or with the first of them if they are many."""
    ranked = sorted(range(len(rows)), key=lambda index: (not rows[index].note, index))
    kept = [rows[index] for index in sorted(ranked[:_MAX_ROWS])]  # the odd ones first
    table = Table(header, [Column(c, left=c in ("per step", "replica")) for c in columns], kept)
    lines = [line.plain for line in table.lines(WIDTH)] if rows else []
    rest = len(rows) - len(kept)
    return [*lines, *[f"… and {some(rest, 'more row')}"] * (rest > 0)]
