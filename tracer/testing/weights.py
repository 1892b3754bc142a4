"""Why steps did not do to the weights what was expected, in text. It takes a trace with effects."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tracer.model.effects import OBSERVATIONS, require_effects, selected
from tracer.model.runs import Run, segments, woven
from tracer.model.selection import Selection
from tracer.model.trace import Trace
from tracer.model.wording import some, span
from tracer.reporters.layout import Column, Row, Table, shown
from tracer.testing.expected import Expected
from tracer.testing.failure import Failure, text_of
from tracer.testing.failure_rows import as_lines, listed

_MOST_SPANS = 3


def of_effects(trace: Trace, expected: Expected) -> str:
    """Why the effects that a trace counts are not as `expected`; empty if they are.

    Raises `tracer.UnknownName` for a variable that the trace does not hold, and if it has no
    effects.
    """
    require_effects(trace.data, expected.what, trace.steps)
    selection = expected.selection(trace)
    heads = []
    for wanted in expected.wanted:
        if expected.per_step:
            got = list(_wrong_steps(trace, expected, selection))
            if got:
                of = listed(got, _MOST_SPANS, "; ")
                heads.append(f"{wanted.what}: expected {wanted}{expected.where}, {of}")
            continue
        count = sum(
            effect.total * len(variables)
            for effect, variables in selected(trace.data, expected.what, selection)
        )
        if not wanted.holds(count):
            heads.append(f"{wanted.what}: expected {wanted}, got {count:,}")
    if not heads:
        return ""
    rows = list(_rows(trace, selection, expected.what))
    columns = [Column("compared"), Column("unchanged"), Column("not finite")]
    return text_of(trace, Failure(heads, as_lines(Table("variable", columns), rows)), notes=False)


def of_changed(trace: Trace, wanted: Sequence[tuple[str, int | None]]) -> str:
    """Why not each variable, a name and its index in the trace, was changed; empty if each was.

    On each replica that was handed it; what has no elements cannot change.
    """
    what = f"changes: expected at least 1 of each of {some(len(wanted), 'variable')}"
    missed = []
    for name, index in wanted:
        if index is not None and 0 in trace.variables[index].shape:
            continue
        looked, same = (
            Counter() if index is None else _by_replica(trace, each, index)
            for each in ("compared", "unchanged")
        )
        still = [replica for replica, number in looked.items() if number == same[replica]]
        if still or not looked:
            compared, unchanged = looked.total(), same.total()
            on = f" on replica {trace.replicas[still[0]].id}" if compared != unchanged else ""
            note = f"no bit changed{on}" if compared else "never handed over"
            updated = 0 if index is None else trace.updates(variable=trace.variables[index].name)
            if compared and not updated:
                note = "never updated"
            cells = (f"{updated:,}", f"{compared:,}", f"{unchanged:,}")
            missed.append(Row(shown(name) or "''", cells, note))
    if not missed:
        return "" if trace.complete else text_of(trace, Failure([f"{what}: not all was seen"]))
    columns = [Column("updates"), Column("compared"), Column("unchanged")]
    lines = as_lines(Table("variable", columns), missed)
    return text_of(trace, Failure([f"{what}, got none of {len(missed):,} of them"], lines))


def _wrong_steps(trace: Trace, expected: Expected, selection: Selection) -> Iterator[str]:
    """What there was instead in some steps, `got 1 in steps 4 to 6 of 10`."""
    (wanted,) = expected.wanted
    for (root, replica), steps in sorted(trace.steps_by_replica().items()):
        weighted = [
            (run, run.times * len(variables))
            for effect, variables in selected(trace.data, expected.what, selection)
            if (effect.root, effect.replica) == (root, replica)
            for run in woven(effect.runs)
        ]
        spans: dict[int, list[str]] = {}
        for first, last, count in segments(weighted, steps):
            if not wanted.holds(count):
                spans.setdefault(count, []).append(span((first, last)))
        for count, which in spans.items():
            on = f" on replica {trace.replicas[replica].id}" if len(trace.replicas) > 1 else ""
            noun = "step" if len(which) == 1 and which[0].isdigit() else "steps"
            yield f"got {count:,} in {noun} {listed(which, _MOST_SPANS)} of {steps:,}{on}"


def _rows(trace: Trace, selection: Selection, what: str) -> Iterator[Row]:
    """What was seen of each variable; that of which something was seen says in which steps."""
    indices = {
        index
        for effect, variables in selected(trace.data, "compared", selection)
        for index in variables
    }
    for index in sorted(indices):
        cells = tuple(f"{_total(trace, each, index):,}" for each in OBSERVATIONS)
        runs = [
            run
            for effect in trace.data.effects
            if effect.what == what and index in effect.variables
            for run in effect.runs
        ]
        yield Row(shown(trace.variables[index].name) or "''", cells, _steps(runs))


def _steps(runs: Iterable[Run]) -> str:
    """`in steps 4 to 6`; of many the first."""
    first = sorted(runs, key=lambda run: run.first)
    if not first:
        return ""
    texts = [
        span((run.first, run.last)) + (f" (each {run.stride:,})" if run.stride > 1 else "")
        for run in first
    ]
    noun = "step" if len(first) == 1 and first[0].count == 1 else "steps"
    return f"in {noun} {listed(list(dict.fromkeys(texts)), _MOST_SPANS)}"


def _total(trace: Trace, what: str, index: int) -> int:
    return _by_replica(trace, what, index).total()


def _by_replica(trace: Trace, what: str, index: int) -> Counter[int]:
    """How often it was seen of the variable on each replica."""
    totals: Counter[int] = Counter()
    for effect in trace.data.effects:
        if effect.what == what and index in effect.variables:
            totals[effect.replica] += effect.total
    return totals
