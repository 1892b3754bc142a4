"""One table of the report as CSV, for a spreadsheet."""

import csv
import io

from tracer.model.trace import Trace
from tracer.reporters.layout import shown
from tracer.reporters.rows import By, columns, everything


def render(trace: Trace, by: By | None = None) -> str:
    """The table `by` (that of the variables if it is None) of all optimizers, with a header."""
    by = by or "variable"
    out = io.StringIO()
    writer = csv.DictWriter(out, ["optimizer", *columns(by)], lineterminator="\n")
    writer.writeheader()
    for summary, _, rows in everything(trace, by):
        for row in rows:
            named = {"optimizer": summary.optimizers[0].name, **row._asdict()}
            writer.writerow({k: shown(v) if isinstance(v, str) else v for k, v in named.items()})
    return out.getvalue()
