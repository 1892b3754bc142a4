"""The report as JSON: what the text report says, as values."""

import json

import msgspec

from tracer.findings.rule_list import findings
from tracer.model.labels import endings
from tracer.model.summary import summaries_of
from tracer.model.trace import Trace
from tracer.reporters.answer import answer, question
from tracer.reporters.tables import TABLES, TREES, By, rows, tracings

FORMAT = "optimizer-tracer-report"
VERSION = 1
"""A field can be added without a new number; any other change takes one."""


def render(trace: Trace, by: By | None = None) -> str:
    """The report as one JSON object in ASCII; the rows are those of `tracer.reporters.tables`.

    `findings` are all, also those that are good to know; null for a part of a trace.
    """
    tables = (*TABLES, *TREES) if by is None else (by,)
    content = {
        "format": FORMAT,
        "version": VERSION,
        "question": question(trace),
        "answer": answer(trace),
        "only": trace.only,
        "complete": trace.complete,
        "finished": trace.finished,
        "programs": msgspec.to_builtins(trace.programs),
        "ended": endings(trace),
        "notes": list(trace.notes),
        "findings": None if trace.only else msgspec.to_builtins(findings(trace)),
        "environment": dict(trace.environment),
        "graph_tracings": [each._asdict() for each in tracings(trace)],
        "optimizers": [
            {
                "name": summary.optimizers[0].name,
                "class": summary.optimizers[0].class_name,
                "kind": summary.optimizers[0].kind,
                "made": summary.optimizers[0].made,
                "nested": [each.class_name for each in summary.optimizers[1:]],
                "steps": summary.steps,
                "tables": {
                    table: [row._asdict() for row in rows(summary, table)] for table in tables
                },
            }
            for summary in summaries_of(trace)
        ],
    }
    return json.dumps(content, indent=1) + "\n"
