"""The columns of a report's tables, in all formats.

JSON, CSV and Markdown have a column for each field of a row. `IN_TEXT` lists those of the text
report: fields, and what `tracer.reporters.text_tables` works out because no other format has it.
"""

from collections import namedtuple
from collections.abc import Mapping
from typing import Literal, get_args

from tracer.layout import Column

By = Literal["variable", "step", "replica", "worker", "method", "caller", "layer"]
TREES: tuple[By, ...] = ("caller", "layer")
"""What has rows in rows: they are not in a report unless they are asked for."""
TABLES: tuple[By, ...] = tuple(each for each in get_args(By) if each not in TREES)

Value = str | int | None

VariableRow = namedtuple(
    "VariableRow",
    "variable shape dtype updates dense sparse least_a_step most_a_step"
    " requests_without_gradient unchanged not_finite",
)
"""One variable. `least_a_step` and `most_a_step` are on one replica, of all of its steps, and None
where the steps are not known. `unchanged` and `not_finite` are in how many steps it was so on any
replica, each counted; None without effects."""

StepRow = namedtuple(
    "StepRow",
    "first last length every on_replicas updates dense sparse requests"
    " requests_without_gradient accumulated unchanged not_finite",
)
"""`length` steps in a row from `first` on that count the same, each of them this much.

If `every` is not None, as many again each `every` steps, up to the step `last`. `accumulated` is on
how many replicas a step kept its gradients for a later one; None if the optimizer was not told to
accumulate any, or if that is not known. `unchanged` and `not_finite` are how many variables were so
after the step, those of each replica counted; None where none was compared."""

ReplicaRow = namedtuple("ReplicaRow", "worker replica device steps updates dense sparse")
WorkerRow = namedtuple("WorkerRow", "worker replicas steps updates dense sparse")
MethodRow = namedtuple(
    "MethodRow", "method executions calls_eager calls_tracing graphs graphs_never_ran"
)

CallerRow = namedtuple(
    "CallerRow", "depth caller file line function executions updates steps calls"
)
"""An element of the tree of callers: a line of the program, or what it called.

What it called follows it with a greater `depth`. The counts are of the methods that the question of
the report is about. `steps` is None for the methods that the tree ends in, and for parts of a step.
"""

LayerRow = namedtuple("LayerRow", "depth layer variables never_updated updates dense sparse")
"""A layer, by its path in the names of variables, or a variable.

What is in it follows it with a greater `depth`."""

Row = VariableRow | StepRow | ReplicaRow | WorkerRow | MethodRow | CallerRow | LayerRow
FIELDS: Mapping[By, tuple[str, ...]] = {
    "variable": VariableRow._fields,
    "step": StepRow._fields,
    "replica": ReplicaRow._fields,
    "worker": WorkerRow._fields,
    "method": MethodRow._fields,
    "caller": CallerRow._fields,
    "layer": LayerRow._fields,
}

UPDATES = {
    "updates": Column("updates"),
    "dense": Column("dense", drop=3),
    "sparse": Column("sparse", drop=3),
}
_BEHIND = {"behind": Column("behind", drop=3, left=True, optional=True)}
EFFECTS = {
    "unchanged": Column("unchanged", drop=1, optional=True),
    "not_finite": Column("not\nfinite", drop=1, optional=True),
}
IN_TEXT: Mapping[By | Literal["optimizer"], Mapping[str, Column]] = {
    "optimizer": {
        "": Column("optimizer"),
        "made_in": Column("made in", drop=1, left=True, optional=True),
        "worker": Column("worker", drop=5, left=True, optional=True),
        "steps": Column("steps"),
        "updates": Column("updates"),
        "per_step": Column("{per_step}", drop=3),
        "calls": Column("Python\ncalls", drop=4),
        "updates_of": Column("updates of", drop=2, left=True),
    },
    "variable": {
        "": Column("{variable}"),
        "updates": Column("updates"),
        "per_step": Column("{per_step}", drop=2),
        "dense": Column("dense", drop=3),
        "sparse": Column("sparse", drop=3),
        "by_replica": Column("by {replica}", drop=4, optional=True),
        **EFFECTS,
    },
    "step": {"": Column("{per_step_of_all}"), **UPDATES, **EFFECTS},
    "replica": {
        "": Column("{replica}"),
        "steps": Column("steps"),
        **UPDATES,
        **_BEHIND,
        "device": Column("device", drop=4, left=True),
    },
    "worker": {
        "": Column("worker"),
        "replicas": Column("replicas", drop=2, optional=True),
        "steps": Column("steps"),
        **UPDATES,
        **_BEHIND,
    },
    "method": {
        "": Column("method"),
        "executions": Column("executions"),
        "calls_eager": Column("calls\neager", drop=2),
        "calls_tracing": Column("calls\ntracing", drop=1),
        "graphs": Column("\n{program}s", drop=3),
        "graphs_never_ran": Column("never\nran", drop=3),
    },
    "caller": {
        "": Column("who calls {methods}"),
        "executions": Column("executions"),
        "steps": Column("steps", drop=2),
        "calls": Column("Python\ncalls", drop=1),
    },
    "layer": {
        "": Column("layer"),
        "variables": Column("{variable}s", drop=3),
        "updates": Column("updates"),
        "of_each": Column("of each", drop=2),
        "dense": Column("dense", drop=4),
        "sparse": Column("sparse", drop=4),
    },
}
"""The columns of each table in their order; that of the names has no name. Words of the trace
stand in braces."""
