"""The report for TensorBoard: scalars for each step, the report as text, and the heat map.

Steps have their numbers in the run. Equal steps in a row have two points, at the first and the last
step: TensorBoard draws a line between them. If that makes too many points, each stands for several
steps.
"""

import struct
import time
from collections.abc import Iterator
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import vl_convert
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

from tracer import files
from tracer.layout import cut_apart, shown
from tracer.model import measures
from tracer.model.summary import Summary, summaries_of
from tracer.model.trace import Trace
from tracer.model.words import some
from tracer.reporters import html
from tracer.reporters.colors import LIGHT
from tracer.reporters.heatmap import FIRST, Cells, HeatMap, coarser
from tracer.reporters.text import render

# The heat map as a picture: at most 20 rows; variables with the same updates share a row.

_MAX_COLUMNS = 120
_MAX_ROWS = 20
_MAX_LABEL = 16  # characters of a name
_SCALE = 2  # sharp on a TensorBoard card, and when enlarged


def picture(summary: Summary) -> bytes | None:
    """The heat map of an optimizer as a PNG; None without any step or update."""
    heat = HeatMap(summary)
    if not summary.steps or not heat.levels:
        return None
    view, cells = heat.views[0], Cells(summary, heat)
    members: dict[int, list[str]] = {}
    for variable, pattern in heat.patterns.items():
        members.setdefault(pattern, []).append(shown(summary.trace.variables[variable].name))
    kept, size, rows = list(members)[:_MAX_ROWS], -(-view.steps // _MAX_COLUMNS), []
    labels = cut_apart([members[pattern][0] for pattern in kept], _MAX_LABEL)
    for label, pattern in zip(labels, kept, strict=True):
        lane = heat.lanes[view.lanes[pattern]]
        stretches = coarser(lane.timeline, size).stretches
        found: list[Any] = [cell for each in stretches for _, cell in each.cycle * each.turns]
        numbers = list(map(cells.number, found))
        rows.append((label, len(members[pattern]) - 1, numbers, lane.not_finite_since))
    svg = html.fill(
        "heatmap.svg",
        view=view,
        several=len(summary.replicas) > 1,
        size=size,
        left=len(members) - len(rows),
        variable=summary.dialect.variable,
        legend=[each for legend in cells.legend() for each in legend],
        first_not_finite=FIRST,
        rows=rows,
        cells=list(cells.rows),
        first=summary.trace.first_step,
        colors=LIGHT,
        some=some,
    )
    return vl_convert.svg_to_png(svg, scale=_SCALE)


# The events.

MOST_POINTS = 2_000
"""The most points of each scalar."""
FILE = "events.out.tfevents.0000000000.tracer"
"""A fixed name, so that writing again replaces the earlier file."""
_NAMES = ("updates/dense", "updates/sparse", "skipped", "unchanged", "not_finite")
_Value = summary_pb2.Summary.Value


def write(trace: Trace, folder: Path) -> None:
    """Write the report to the folder `tracer` of `folder`, as a run of that name.

    The scalars are `tracer/updates/dense`, `tracer/updates/sparse` and `tracer/skipped` (1 for a
    step that updated nothing), for all replicas together; with several optimizers, the optimizer's
    name follows `tracer`. If the trace has effects, `tracer/unchanged` and `tracer/not_finite`
    count the variables with that effect. Raises `OSError` if the files cannot be written.
    """
    run = folder / "tracer"
    run.mkdir(parents=True, exist_ok=True)
    now = time.time()
    content = BytesIO()
    records = RecordWriter(content)
    for event in _events(trace):
        event.wall_time = now
        records.write(event.SerializeToString())
    files.write(run / FILE, content.getvalue())


def _events(trace: Trace) -> Iterator[Any]:
    """The events to write, without times."""
    yield event_pb2.Event(file_version="brain.Event:2")
    before = trace.first_step - 1
    text, summaries = render(trace, width=100), summaries_of(trace)
    for summary in summaries:
        tag = f"tracer/{shown(summary.optimizers[0].name)}" if len(summaries) > 1 else "tracer"
        points, size = _points(summary)
        if size > 1:
            text = f"{tag}: a point is the mean of {size:,} steps\n{text}"
        for step, means in points:
            scalars = zip(_NAMES, means, strict=False)
            values = [_Value(tag=f"{tag}/{name}", simple_value=mean) for name, mean in scalars]
            yield _event(before + step, *values)
        if drawn := picture(summary):
            width, height = struct.unpack(">II", drawn[16:24])  # the header of a PNG
            image = summary_pb2.Summary.Image(
                height=height, width=width, colorspace=4, encoded_image_string=drawn
            )
            yield _event(before + trace.steps, _Value(tag=f"{tag}/heat map", image=image))
    report = "".join(f"    {line}\n" for line in text.splitlines())  # Markdown keeps its columns
    plugin = summary_pb2.SummaryMetadata.PluginData(plugin_name="text")
    value = _Value(
        tag="tracer/report",
        metadata=summary_pb2.SummaryMetadata(plugin_data=plugin),
        tensor=tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[report.encode()]),
    )
    yield _event(before + trace.steps, value)


def _event(step: int, *values: Any) -> Any:
    return event_pb2.Event(step=step, summary=summary_pb2.Summary(value=values))


def _points(summary: Summary) -> tuple[list[tuple[int, list[float]]], int]:
    """Steps with the means of the scalars, and how many steps each stands for."""
    effects = measures.effects[1:] if summary.effects else ()
    timeline = summary.timeline(measures.dense, measures.sparse, *effects)
    timeline = timeline.map(lambda each: (*each[:2], int(not any(each[:2])), *each[2:]))
    runs = islice(timeline.spans(lambda values: True), MOST_POINTS + 1)
    ends = sorted({step for first, last, _ in runs for step in (first, last)})
    size = -(-summary.steps // MOST_POINTS) if len(ends) > MOST_POINTS else 1
    if size > 1:
        ends = [*range(size, summary.steps, size), summary.steps]
    points = []
    for last in ends:
        first = (last - 1) // size * size + 1
        counts = ([n * each for each in values] for n, values in timeline.within(first, last))
        sums = map(sum, zip(*counts, strict=True))
        points.append((last, [each / (last + 1 - first) for each in sums]))
    return points, size
