"""The trees of the text report: who calls, and what of the model was updated."""

from collections.abc import Callable, Sequence

from rich.text import Text

from tracer.layout import Column, paragraph
from tracer.model.callers import LACKING, known
from tracer.model.summary import Summary
from tracer.model.wording import some
from tracer.reporters import caller_tree, layer_tree, trees
from tracer.reporters.rows import By
from tracer.reporters.text_tables import ODD, WRONG, Asked
from tracer.reporters.trees import Node

MAX_ROWS = 1000  # rows
CALLER_COLUMNS = ("executions", "steps", "Python\ncalls")
LAYER_COLUMNS = ("variables", "updates", "of each", "dense", "sparse")


def by_caller(summary: Summary, width: int, asked: Asked) -> list[Text]:
    """A row for each chain of calls, the widest branch first."""
    if not known(summary.trace.data):
        return paragraph(LACKING, width, style=ODD)
    header = f"who calls {caller_tree.methods(summary) or 'it'}"
    columns = _columns(CALLER_COLUMNS, (0, 2, 1))
    nodes = caller_tree.nodes(summary, ODD)
    return _lines("caller", header, columns, nodes, caller_tree.JOINT, width)


def by_layer(summary: Summary, width: int, asked: Asked) -> list[Text]:
    """A row for each layer; those in a row that are alike are one."""
    headers = (f"{summary.dialect.variable}s", *LAYER_COLUMNS[1:])
    columns = _columns(headers, (3, 0, 2, 4, 4))
    nodes = layer_tree.nodes(summary, ODD, WRONG)
    return _lines("layer", "layer", columns, nodes, summary.dialect.separator, width)


def _columns(headers: Sequence[str], drops: Sequence[int]) -> list[Column]:
    return [Column(header, drop) for header, drop in zip(headers, drops, strict=True)]


def _lines(
    by: By, header: str, columns: Sequence[Column], nodes: Sequence[Node], joint: str, width: int
) -> list[Text]:
    lines = trees.lines(header, columns, nodes, width, joint, MAX_ROWS)
    rest = sum(1 for _ in trees.in_order(nodes)) - MAX_ROWS
    if rest > 0:
        more = f"… and {some(rest, 'more row')}: --by {by} --format csv has them all"
        lines += paragraph(more, width, style="dim")
    return lines


TREES: dict[By, Callable[[Summary, int, Asked], list[Text]]] = {
    "caller": by_caller,
    "layer": by_layer,
}
