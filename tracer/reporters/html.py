"""The report as one HTML page without a script: it opens from a disk and makes no request.

What it shows is computed here and in `heatmap`. The template puts it in place and escapes it.
"""

import base64
import hashlib
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import cache
from importlib.resources import files
from itertools import zip_longest

import jinja2
from markupsafe import Markup

from tracer.findings.rule import Finding, findings
from tracer.layout import cut, shown
from tracer.model import counts as measures, facts, phrases
from tracer.model.trace import Summary, Trace, summaries_of
from tracer.model.words import listed, some
from tracer.reporters import columns
from tracer.reporters.answer import headline, in_all, question, sentences, warnings
from tracer.reporters.columns import Table
from tracer.reporters.heatmap import HeatMap

_MANY_OPTIMIZERS = 3  # more are closed at first, below a table of all
_MAX_OPTIMIZERS = 50
_MAX_ROWS = 500  # of each table, over all optimizers
_MIN_ROWS = 30
_MAX_CELLS = 8_000  # of the heat maps of all optimizers: about one megabyte
_MAX_NOTES = 100
_MAX_NAME = 120  # characters of a command


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
    summaries, found = summaries_of(trace), findings(trace)
    drawn = summaries[:_MAX_OPTIMIZERS]
    parts, many = max(1, len(drawn)), len(summaries) > _MANY_OPTIMIZERS
    style = (files("tracer.reporters") / "templates/report.css").read_text(encoding="utf-8")
    return _template().render(
        trace=trace,
        title=_title(trace, found),
        style=Markup(style),
        digest=Markup(base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()),
        question=question(trace),
        answers=[*zip_longest(sentences(trace), map(facts.sentences_on, summaries), fillvalue=[])],
        totals=in_all(trace),
        warnings=warnings(trace),
        findings=found,
        most_notes=_MAX_NOTES,
        overview=columns.optimizers(summaries) if many else None,
        optimizers=[
            (each, HeatMap(each, _MAX_CELLS // parts), _tables(each, trace)) for each in drawn
        ],
        optimizers_left=len(summaries) - len(drawn),
        most_rows=max(_MIN_ROWS, _MAX_ROWS // parts),
        runs=list(phrases.runs(trace)),
        replica_noun=phrases.replica_noun(trace),
        updates=measures.updates,
        headline=headline,
        some=some,
    )


def _title(trace: Trace, found: Sequence[Finding]) -> str:
    """The page's title: the program, when it ran, and the number of findings."""
    parts = ["optimizer-tracer"]
    if trace.programs:
        first = min(trace.programs, key=lambda program: program.started)
        began = datetime.fromtimestamp(first.started, timezone.utc)
        parts = [f"{cut(first.command, _MAX_NAME, _MAX_NAME // 2)}, {began:%Y-%m-%d %H:%M} UTC"]
    severities = [finding.severity for finding in found]
    counts = [some(severities.count(x), x) for x in ("error", "warning") if x in severities]
    well = "no errors and no warnings" if trace.complete else "incomplete"
    return shown(": ".join([*parts, listed(counts) or well]))


def _tables(summary: Summary, trace: Trace) -> list[Table]:
    """The tables of the text report, and the lines of the program that call."""
    callers: list[columns.By] = ["caller"] if trace.data.paths else []
    return [columns.table(summary, by) for by in (*columns.in_report(summary), *callers)]
