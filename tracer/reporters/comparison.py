"""What changed between two runs, as text."""

from collections.abc import Sequence
from itertools import chain

from rich.text import Text

from tracer.layout import Column, Row, Table, paragraph, printed, shown
from tracer.model.compare import Change, Difference
from tracer.model.phrases import endings
from tracer.model.trace import Trace
from tracer.model.words import all_true, first_of
from tracer.reporters.colors import WARNING

_MAX_ROWS = 100  # rows of a table
_MAX_MOVES = 10  # lines of the program that have moved

_BOTH = "First", "Second"
_HEADERS = {
    "steps": "steps{on}",
    "updates": "{noun}, updates{together}",
    "unchanged": "{noun}, unchanged\nafter so many steps{together}",
    "not_finite": "{noun}, not finite\nafter so many steps{together}",
    "runs": "updates per step{together}",
    "methods": "method",
    "callers": "updates that come from",
}
"""The tables in order, by the keys of `Difference.changes`."""


def render(
    before: Trace,
    after: Trace,
    differences: Sequence[Difference],
    *,
    width: int | None = None,
    color: bool = False,
) -> str:
    """The differences, a table for each kind; one line if there are none."""
    width = max(20, width or 80)
    several = len(differences) > 1
    verdict = "The traces differ." if any(differences) else "The traces count the same."
    lines = [Text(verdict, style="bold"), *([] if several else _same(differences, width))]
    for text in (*_notes(before, "first"), *_notes(after, "second")):
        lines += paragraph(text, width, style=WARNING)
    for text in _surroundings(before, after):
        lines += paragraph(text, width)
    for difference in differences:
        lines += _one(difference, width, named=several)
    return printed(lines, width, color)


def _notes(trace: Trace, which: str) -> list[str]:
    return [
        *all_true(
            (not trace.finished, f"The {which} trace is of a run that was not finished."),
            (not trace.complete, f"The {which} trace is incomplete: its counts are at least that."),
        ),
        *(f"The {which} trace: {ending}" for ending in endings(trace)),
    ]


def _surroundings(before: Trace, after: Trace) -> list[str]:
    versions = [
        f"{key} {before.environment.get(key) or '-'} and {after.environment.get(key) or '-'}"
        for key in sorted({*before.environment, *after.environment})
        if before.environment.get(key) != after.environment.get(key)
    ]
    which = "first" if before.has_effects else "second"
    return all_true(
        (versions, f"Not the same surroundings: {shown(', '.join(versions))}."),
        (
            before.has_effects != after.has_effects,
            f"Only the {which} trace has effects, so effects are not compared.",
        ),
    )


def _same(differences: Sequence[Difference], width: int) -> list[Text]:
    same = ", ".join(text for each in differences if each for text in each.same)
    return paragraph(f"The same: {same}.", width) if same else []


def _one(difference: Difference, width: int, named: bool) -> list[Text]:
    sentences = _sentences(difference)
    lines = [Text()] if sentences or named else []
    if named:
        lines += paragraph(shown(difference.title), width, style="bold")
        lines += _same([difference], width)
    for bullet, text in sentences:
        lines += paragraph(shown(text), width, bullet)
    several = difference.several
    words = {
        "noun": difference.noun,
        "on": " on" if several else "",
    }
    tables = []
    for what, header in _HEADERS.items():
        if changes := difference.changes.get(what):
            together = f"\n(all {several}{_unless_named(changes)})" if several else ""
            words["together"] = together if any(not each.replica for each in changes) else ""
            tables.append([Text(), *_table(header.format_map(words), changes).lines(width)])
    return list(chain(lines, *tables)) if sentences or tables else []


def _sentences(difference: Difference) -> list[tuple[str, str]]:
    """The sentences above the tables, each with its bullet."""
    pairs = ", ".join(f"{before} = {after}" for before, after in difference.renamed)
    moves = first_of(
        [f"{before} is now {after}" for before, after in difference.shifted], _MAX_MOVES
    )
    renamed = f"Layers with other names were matched by their order and shapes: {pairs}."
    moved = f"Lines that lead to updates have moved: {moves}."
    return [
        *(
            ("", f"{which}: {text}")
            for which, text in zip(_BOTH, difference.rates, strict=True)
            if text
        ),
        *(("", text) for text in all_true((pairs, renamed))),
        *(("- ", text) for text in (*difference.reshaped, *difference.one_sided)),
        *(("", text) for text in all_true((moves, moved))),
    ]


def _unless_named(changes: Sequence[Change]) -> str:
    return ", if none is named" if any(each.replica for each in changes) else ""


def _table(header: str, changes: Sequence[Change]) -> Table:
    """The changes of one kind."""
    rows = [
        Row(
            shown(", ".join(filter(None, (each.name, each.replica)))),
            (each.before, each.after),
            shown(each.where),
        )
        for each in changes[:_MAX_ROWS]
    ]
    below = [f"... and {len(changes) - _MAX_ROWS:,} more"] if len(changes) > _MAX_ROWS else []
    columns = (Column("first"), Column("second"))
    return Table(header, columns, rows, below=below)
