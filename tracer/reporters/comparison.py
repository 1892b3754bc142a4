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

_HEADERS = {
    "steps": "steps{on}",
    "updates": "{noun}, updates{together}",
    "unchanged": "{noun}, unchanged\nafter so many steps{together}",
    "not_finite": "{noun}, not finite\nafter so many steps{together}",
    "runs": "updates per step{together}",
    "methods": "method",
    "callers": "updates that come from",
}
"""The tables in their order, by what `Difference.changes` has."""


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
    verdict = "The traces differ." if any(differences) else "The traces count the same."
    lines = [Text(verdict, style="bold")]
    if len(differences) == 1:
        lines += _same(differences[0], width)
    for which, trace in (("first", before), ("second", after)):
        for text in _notes(trace, which):
            lines += paragraph(text, width, style=ODD)
    for text in _surroundings(before, after):
        lines += paragraph(text, width)
    for difference in differences:
        lines += _one(difference, width, named=len(differences) > 1)
    return printed(lines, width, color)


def _notes(trace: Trace, which: str) -> Iterator[str]:
    if not trace.finished:
        yield f"The {which} trace is of a run that was not finished."
    if not trace.complete:
        yield f"The {which} trace is incomplete: its counts are at least that."
    yield from (f"The {which} trace: {ending}" for ending in endings(trace))


def _surroundings(before: Trace, after: Trace) -> Iterator[str]:
    versions = [
        f"{key} {before.environment.get(key, '-')} and {after.environment.get(key, '-')}"
        for key in sorted({*before.environment, *after.environment})
        if before.environment.get(key) != after.environment.get(key)
    ]
    if versions:
        yield f"Not the same surroundings: {shown(', '.join(versions))}."
    if before.has_effects != after.has_effects:
        which = "first" if before.has_effects else "second"
        yield f"Only the {which} trace has effects, so what became of the weights is not compared."


def _same(difference: Difference, width: int) -> Iterator[Text]:
    if difference and difference.same:
        yield from paragraph(f"The same: {', '.join(difference.same)}.", width)


def _one(difference: Difference, width: int, named: bool) -> Iterator[Text]:
    sentences = list(_sentences(difference))
    if not (sentences or any(difference.changes.values())):
        return
    if named or sentences:
        yield Text()
    if named:
        yield from paragraph(shown(difference.title), width, style="bold")
        yield from _same(difference, width)
    for mark, text in sentences:
        yield from paragraph(shown(text), width, mark)
    several = difference.several
    words = {
        "noun": difference.noun,
        "on": " on" if several else "",
        "together": f"\n(all {several})" if several else "",
    }
    for what, header in _HEADERS.items():
        if changes := difference.changes.get(what):
            yield Text()
            rows = [_row(each) for each in changes[:_MOST]]
            columns = (Column("first"), Column("second"))
            whole = what == "callers"  # of a line the end and the file tell most
            table = Table(header.format_map(words), columns, rows, cut_names=not whole)
            yield from table.lines(width)
            if rest := len(changes) - len(rows):
                yield Text(f"... and {rest:,} more")


def _sentences(difference: Difference) -> Iterator[tuple[str, str]]:
    """What is said above the tables, each after the mark that it begins with."""
    if difference.renamed:
        pairs = ", ".join(f"{before} = {after}" for before, after in difference.renamed)
        yield "", f"Layers with other names were matched by their order and shapes: {pairs}."
    yield from (("- ", text) for text in (*difference.reshaped, *difference.only))
    if difference.shifted:
        moves = [f"{before} is now {after}" for before, after in difference.shifted]
        rest = len(moves) - _FEW
        more = f" and {some(rest, 'more line')}" if rest > 0 else ""
        yield "", f"Lines that lead to updates have moved: {', '.join(moves[:_FEW])}{more}."


def _row(change: Change) -> Row:
    cells = tuple("-" if each is None else f"{each:,}" for each in (change.before, change.after))
    return Row(shown(change.name), cells, shown(change.where))
