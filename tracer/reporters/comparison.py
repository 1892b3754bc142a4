"""What changed between two runs, as text."""

from collections.abc import Iterator, Sequence

from rich.text import Text

from tracer.layout import Column, Row, Table, paragraph, shown
from tracer.model.compare import Change, Difference
from tracer.model.programs import endings
from tracer.model.trace import Trace
from tracer.model.wording import some
from tracer.reporters.text import printed
from tracer.reporters.text_tables import ODD

_MOST = 100  # rows of a table
_FEW = 10  # lines that have moved


def render(
    before: Trace,
    after: Trace,
    differences: Sequence[Difference],
    *,
    width: int | None = None,
    color: bool = False,
) -> str:
    """The differences, a table for each kind; one line where there are none."""
    width = max(20, width or 80)
    return printed(list(_lines(before, after, differences, width)), width, color)


def _lines(
    before: Trace, after: Trace, differences: Sequence[Difference], width: int
) -> Iterator[Text]:
    changed = [each for each in differences if each]
    verdict = "The traces differ." if changed else "The traces count the same."
    yield Text(verdict, style="bold")
    if len(differences) == 1:
        yield from _same(differences[0], width)
    for which, trace in (("first", before), ("second", after)):
        for said, text in (
            (trace.finished, "is of a run that was not finished"),
            (trace.complete, "is incomplete: its counts are at least that"),
        ):
            if not said:
                yield from paragraph(f"The {which} trace {text}.", width, style=ODD)
        for ending in endings(trace):
            yield from paragraph(f"The {which} trace: {ending}", width, style=ODD)
    versions = [
        f"{key} {before.environment.get(key, '-')} and {after.environment.get(key, '-')}"
        for key in sorted({*before.environment, *after.environment})
        if before.environment.get(key) != after.environment.get(key)
    ]
    if versions:
        yield from paragraph(f"Not the same surroundings: {shown(', '.join(versions))}.", width)
    if before.has_effects != after.has_effects:
        which = "first" if before.has_effects else "second"
        only = f"Only the {which} trace has effects, so what became of the weights is not compared."
        yield from paragraph(only, width)
    for difference in differences:
        if difference or _said(difference) or difference.callers:
            yield from _one(difference, width, named=len(differences) > 1)


def _same(difference: Difference, width: int) -> Iterator[Text]:
    if difference and difference.same:
        yield from paragraph(f"The same: {', '.join(difference.same)}.", width)


def _said(difference: Difference) -> bool:
    """Whether it says what is no difference in counts."""
    return bool(difference.renamed or difference.reshaped or difference.shifted)


def _one(difference: Difference, width: int, named: bool) -> Iterator[Text]:
    if named or difference.only or _said(difference):
        yield Text()
    if named:
        yield from paragraph(shown(difference.title), width, style="bold")
    if named:
        yield from _same(difference, width)
    if difference.renamed:
        pairs = ", ".join(f"{shown(a)} = {shown(b)}" for a, b in difference.renamed)
        said = f"Layers with other names were matched by their order and shapes: {pairs}."
        yield from paragraph(said, width)
    for reshaped in difference.reshaped:
        yield from paragraph(shown(reshaped), width, "- ")
    for only in difference.only:
        yield from paragraph(shown(only), width, "- ")
    if difference.shifted:
        moves = [f"{shown(a)} is now {shown(b)}" for a, b in difference.shifted]
        rest = len(moves) - _FEW
        more = f" and {some(rest, 'more line')}" if rest > 0 else ""
        said = f"Lines that lead to updates have moved: {', '.join(moves[:_FEW])}{more}."
        yield from paragraph(said, width)
    together = f"\n(all {difference.several})" if difference.several else ""
    tables = (
        ("steps on" if difference.several else "steps", difference.steps),
        (f"{difference.noun}, updates{together}", difference.variables),
        (f"{difference.noun}, unchanged\nafter so many steps{together}", difference.unchanged),
        (f"{difference.noun}, not finite\nafter so many steps{together}", difference.not_finite),
        (f"updates per step{together}", difference.runs),
        ("method", difference.methods),
        ("updates that come from", difference.callers),
    )
    for header, changes in tables:
        if changes:
            yield Text()
            rows = [_row(each) for each in changes[:_MOST]]
            columns = (Column("first"), Column("second"))
            whole = changes is difference.callers  # of a line the end and the file tell most
            yield from Table(header, columns, rows, cut_names=not whole).lines(width)
            if rest := len(changes) - len(rows):
                yield Text(f"... and {rest:,} more")


def _row(change: Change) -> Row:
    cells = tuple("-" if each is None else f"{each:,}" for each in (change.before, change.after))
    return Row(shown(change.name), cells, shown(change.where))
