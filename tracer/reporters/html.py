"""The report as one HTML page without a script: it opens from a disk and makes no request.

What it shows, as the heat map of what the steps did to each variable, is computed here. The
template puts it in place and escapes it.
"""

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import jinja2
from markupsafe import Markup

from tracer.findings.rule import findings
from tracer.layout import cut
from tracer.model import counts as measures
from tracer.model.phrases import not_applied, reason, replica_noun, runs
from tracer.model.trace import Pattern, Summary, Trace, summaries_of
from tracer.reporters import columns
from tracer.reporters.text import (
    MANY_OPTIMIZERS,
    headline,
    in_all,
    question,
    sentences,
    warnings,
)
from tracer.words import first_true, shown, some

COLUMNS = 200  # of a heat map
MAX_ROWS = 300  # of a heat map
_MAX_OPTIMIZERS = 50
_MAX_ROWS = 500  # of each table, over all optimizers
_MIN_ROWS = 30
_MAX_CELLS = 8_000  # of the heat maps of all optimizers: about one megabyte
_MAX_NOTES = 100


Cell = tuple[int, int, str, str]
"""Neighbouring columns in the same state: the first one from 0, their number, the state, which is a
class in the style of the page, and a text."""


@cache
def _template() -> jinja2.Template:
    """The template of the page, which escapes all values, control characters included."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tracer.reporters"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: shown(value) if type(value) is str else value,
    )
    environment.filters["cut"] = lambda text, width: cut(shown(text), width, width // 2)
    return environment.get_template("report.html")


def render(trace: Trace) -> str:
    """The report as a page."""
    summaries, ran = summaries_of(trace), list(runs(trace))
    callers: list[columns.By] = ["caller"] if trace.data.paths else []
    parts = min(max(1, len(summaries)), _MAX_OPTIMIZERS)
    style = (files("tracer.reporters") / "templates/report.css").read_text(encoding="utf-8")
    return _template().render(
        trace=trace,
        title=cut((ran or ["optimizer-tracer"])[0], 150, 75),
        style=Markup(style),
        digest=Markup(base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()),
        question=question(trace),
        answers=sentences(trace),
        totals=in_all(trace),
        warnings=warnings(trace),
        findings=findings(trace),
        most_notes=_MAX_NOTES,
        many=len(summaries) > MANY_OPTIMIZERS,
        optimizers=[
            (
                summary,
                heat_map(summary, _MAX_CELLS // parts),
                [*tables, *(columns.table(summary, by) for by in callers)],
            )
            for summary, tables in columns.sections(trace)[:_MAX_OPTIMIZERS]
        ],
        optimizers_left=max(0, len(summaries) - _MAX_OPTIMIZERS),
        most_rows=max(_MIN_ROWS, _MAX_ROWS // parts),
        runs=ran,
        replica_noun=replica_noun(trace),
        updates=measures.updates,
        headline=headline,
        some=some,
    )


# The heat map: at most `COLUMNS` columns of as many steps each, on all replicas together.


class HeatMap(NamedTuple):
    """The variables of one optimizer, odd ones first, with the cells of each."""

    rows: list[tuple[str, list[Cell]]]
    columns: int
    size: int
    """The number of steps in a column; the last one may have fewer."""
    legend: dict[str, str]
    """What the states in use mean."""


def heat_map(summary: Summary, most: int) -> HeatMap:
    """The heat map of an optimizer, with at most `most` cells and `MAX_ROWS` rows."""
    steps, why, lost = summary.steps, reason(summary), summary.step_unknown(measures.updates)
    size = -(-steps // COLUMNS) or 1
    spans = [(first, min(first + size - 1, steps)) for first in range(1, steps + 1, size)]
    idle = "unknown" if lost else "expected" if why and why == not_applied(summary) else "nothing"
    words = {
        "updated": "updated",
        "some": "updated in some of the steps",
        "others": f"no update, while other {summary.dialect.variable}s were updated",
        idle: "no update known" if lost else f"no update: {why or 'the step updated nothing'}",
        "never": "never updated",
        "unchanged": "unchanged by updates",
        "infinite": "not finite after a step",
    }
    every = summary.timeline(measures.updates)
    active = [any(made for _, (made,) in every.within(*span)) for span in spans]
    without = [idle if lost or not others else "others" for others in active]
    patterns: dict[object, Pattern] = {
        index: pattern for pattern in summary.patterns for index in pattern.variables
    }
    cells: dict[Pattern, list[Cell]] = {}
    rows = []
    for row in columns.table(summary, "variable").odd_first[: MAX_ROWS if steps else 0]:
        pattern = patterns[row.of]
        if pattern not in cells:
            cells[pattern] = list(_cells(pattern, spans, without, words))
        most -= len(cells[pattern])
        if most < 0:
            break
        rows.append((row.values["variable"], cells[pattern]))
    used = {state for _, own in rows for _, _, state, _ in own}
    legend = {state: text for state, text in words.items() if state in used}
    return HeatMap(rows, len(spans), size, legend)


def _cells(
    pattern: Pattern,
    spans: Sequence[tuple[int, int]],
    without: Sequence[str],
    words: Mapping[str, str],
) -> Iterator[Cell]:
    """Yield the cells of a variable; `without` has the state of each column without an update."""
    timeline = pattern.timeline(measures.updates, *measures.effects)
    never = not pattern.total(measures.updates)
    states = []
    for span, idle in zip(spans, without, strict=True):
        steps = list(timeline.within(*span))
        updating = [values for _, values in steps if values[0]]
        state = first_true(
            (any(bad for _, (*_, bad) in steps), "infinite"),
            (updating and all(0 < seen == same for _, seen, same, _ in updating), "unchanged"),
            (len(updating) == len(steps), "updated"),
            (updating, "some"),
            (True, "never" if never else idle),
        )
        states.append((state, *span, sum(number * values[0] for number, values in steps)))
    column = 0
    for state, same in groupby(states, key=itemgetter(0)):
        _, firsts, lasts, made = zip(*same, strict=True)
        first, last = firsts[0], lasts[-1]
        where = f"step {first:,}" if first == last else f"steps {first:,}-{last:,}"
        number = f" ({some(sum(made), 'update')})" if any(made) else ""
        yield column, len(made), state, f"{where}: {words[state]}{number}"
        column += len(made)
