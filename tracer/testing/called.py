"""Which lines of the program called what was not expected."""

from collections import Counter
from collections.abc import Iterator, Sequence

from tracer.model import callers
from tracer.model.records import Block
from tracer.model.selection import Selection
from tracer.model.summary import Summary
from tracer.model.timeline import Values
from tracer.reporters.layout import shown
from tracer.testing.expected import Expected, Wanted
from tracer.testing.failure_rows import Span, measure_of, replicas_to_judge, spans_of

_MOST_SPANS = 20
"""In so many stretches of steps it is looked who called."""


def callers_at_fault(
    summaries: Sequence[Summary], expected: Expected, selection: Selection, failed: Sequence[Wanted]
) -> list[str]:
    """The lines that called what is not as `failed` want it; what ran most often comes first.

    They are those that are nearest to the optimizer; none if the trace knows no callers.
    """
    counts: Counter[str] = Counter()
    for summary in summaries:
        data = summary.trace.data
        for block in _at_fault(summary, expected, selection, failed) if data.paths else ():
            if (line := callers.nearest(data, block.path)) is not None:
                counts[shown(callers.label(line))] += block.total
    return [line for line, _ in counts.most_common()]


def _at_fault(
    summary: Summary, expected: Expected, selection: Selection, failed: Sequence[Wanted]
) -> Iterator[Block]:
    """The blocks that ran where a count is not as wanted; if it is too small, the steps, too."""
    for wanted in failed:
        measure = measure_of(selection, wanted.kinds)
        for replica in replicas_to_judge(summary, expected.per_replica):
            spans = _wrong_spans(summary, wanted, selection, replica) if expected.per_step else None
            short = expected.per_step or summary.total(measure, replica) < (wanted.low or 0)
            for block in summary.by_path():
                is_meant = replica is None or block.replica == replica
                counts = measure(block) or (short and block.step)
                if is_meant and counts and block.total and _ran_in(block, spans):
                    yield block


def _wrong_spans(
    summary: Summary, wanted: Wanted, selection: Selection, replica: int | None
) -> list[Span]:
    """The steps in which a count is not as wanted."""

    def is_right(values: Values) -> bool:
        return wanted.holds(values[0])

    measure = measure_of(selection, wanted.kinds)
    by_values = spans_of(summary, replica, [measure], but=is_right)
    return [span for spans in by_values.values() for span in spans]


def _ran_in(block: Block, spans: Sequence[Span] | None) -> bool:
    """Whether a block ran in any of these steps, or outside any; None are all of them."""
    if spans is None or block.outside:
        return True
    steps = [range(first, last + 1) for first, last in spans[:_MOST_SPANS]]
    return any(run.only(each) is not None for each in steps for run in block.runs)
