"""One table of the report as CSV, for a spreadsheet.

Its columns are the fields of a row in `tracer.reporters.tables`.
"""

import csv
import io

from tracer.errors import shown
from tracer.model.summary import summaries_of
from tracer.model.trace import Trace
from tracer.reporters.tables import FIELDS, By, Value, rows

_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
"""What a formula begins with in a spreadsheet: owasp.org/www-community/attacks/CSV_Injection."""


def render(trace: Trace, by: By | None = None) -> str:
    """The table `by` (that of the variables if it is None) of all optimizers, with a header."""
    by = by or "variable"
    out = io.StringIO()
    writer = csv.DictWriter(out, ["optimizer", *FIELDS[by]], lineterminator="\n")
    writer.writeheader()
    for summary in summaries_of(trace):
        for row in rows(summary, by):
            named = {"optimizer": summary.optimizers[0].name, **row._asdict()}
            writer.writerow({name: _cell(value) for name, value in named.items()})
    return out.getvalue()


def _cell(value: Value) -> Value:
    """The value; a text that would be a formula begins with an apostrophe instead."""
    if not isinstance(value, str):
        return value
    return f"'{shown(value)}" if value.startswith(_FORMULA) else shown(value)
