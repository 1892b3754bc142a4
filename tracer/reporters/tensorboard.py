"""The report for TensorBoard: scalars for each step, the report as text, and the heat map.

Steps have the numbers that they have in the run. Equal steps in a row have two points, at the first
and at the last of them: TensorBoard draws a line between. Where that would be too many points, each
stands for several steps.
"""

import struct
import time
from collections.abc import Iterator
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary as SummaryProto, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.record_writer import RecordWriter

from tracer.layout import shown
from tracer.model import measures
from tracer.model.records import Observation
from tracer.model.summary import Summary, summaries_of
from tracer.model.trace import Trace
from tracer.reporters.heatmap import Cell, Lane
from tracer.reporters.picture import picture
from tracer.reporters.text import render

MOST_POINTS = 2_000
"""Of each scalar."""
FILE = "events.out.tfevents.0000000000.tracer"
"""A name that does not change, so that writing again replaces what was written before."""

_Names = tuple[str, str, str | None]


def write(trace: Trace, folder: Path) -> None:
    """Write the report to the folder `tracer` of `folder`, as a run of that name.

    The scalars are `tracer/updates/dense`, `tracer/updates/sparse` and `tracer/skipped` (1 for a
    step that updated nothing), of all replicas together; of several optimizers each has its name in
    between. If the trace has effects, `tracer/unchanged` and `tracer/not_finite` are of how many
    variables that was so after the step. Raises `OSError` if it cannot be written.
    """
    summaries = summaries_of(trace)
    run = folder / "tracer"
    run.mkdir(parents=True, exist_ok=True)
    time_of_writing = time.time()
    unfinished = run / f".{FILE}.new"  # TensorBoard reads what has the other name
    with unfinished.open("wb") as file:
        records = RecordWriter(file)
        records.write(
            Event(wall_time=time_of_writing, file_version="brain.Event:2").SerializeToString()
        )
        for step, proto in _summaries(trace, summaries):
            event = Event(wall_time=time_of_writing, step=step, summary=proto)
            records.write(event.SerializeToString())
    unfinished.replace(run / FILE)


def _summaries(trace: Trace, summaries: list[Summary]) -> Iterator[tuple[int, SummaryProto]]:
    """What is written, with its step."""
    before = trace.first_step - 1
    last = trace.steps + before
    folded: dict[str, None] = {}
    for summary in summaries:
        tag = f"tracer/{shown(summary.optimizers[0].name)}" if len(summaries) > 1 else "tracer"
        for names, lane in _lanes(summary):
            points, size = _points(lane, summary.steps)
            if size > 1:
                folded[f"{tag}: a point is the mean of {size:,} steps"] = None
            for step, cell in points:
                yield step + before, _scalars(tag, names, cell)
        drawn = picture(summary)
        if drawn is not None:
            width, height = struct.unpack(">II", drawn[16:24])  # as a PNG begins
            image = SummaryProto.Image(
                height=height, width=width, colorspace=4, encoded_image_string=drawn
            )
            value = SummaryProto.Value(tag=f"{tag}/heat map", image=image)
            yield last, SummaryProto(value=[value])
    yield (
        last,
        SummaryProto(value=[_text("\n".join([*folded, "", render(trace, width=100)]).lstrip())]),
    )


def _lanes(summary: Summary) -> Iterator[tuple[_Names, Lane]]:
    """What each step counts: two numbers and whether both are 0, with their names."""
    yield (
        ("updates/dense", "updates/sparse", "skipped"),
        Lane(summary.timeline(measures.dense, measures.sparse)),
    )
    if summary.effects:
        seen: tuple[Observation, Observation] = "unchanged", "not_finite"
        yield (*seen, None), Lane(summary.timeline(observations=seen))


def _points(lane: Lane, steps: int) -> tuple[list[tuple[int, Cell]], int]:
    """Steps with what they count, and how many steps each stands for."""
    ends: list[tuple[int, Cell]] = []
    for first, end, _ in lane.runs():
        if len(ends) >= MOST_POINTS:
            break
        ends += [(step, lane.within(step, step)) for step in dict.fromkeys((first, end))]
    else:
        return ends, 1
    size = -(-steps // MOST_POINTS)
    windows = ((first, min(first + size - 1, steps)) for first in range(1, steps + 1, size))
    return [(end, lane.within(first, end)) for first, end in windows], size


def _scalars(tag: str, names: _Names, cell: Cell) -> SummaryProto:
    """The mean of the steps in `cell`."""
    counts = zip(names, (cell.dense, cell.sparse, cell.without), strict=True)
    return SummaryProto(
        value=[
            SummaryProto.Value(tag=f"{tag}/{name}", simple_value=count / cell.steps)
            for name, count in counts
            if name is not None
        ]
    )


def _text(report: str) -> SummaryProto.Value:
    """The text as Markdown that keeps its columns."""
    indented = "".join(f"    {line}\n" for line in report.splitlines())
    return SummaryProto.Value(
        tag="tracer/report",
        metadata=SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text")),
        tensor=TensorProto(dtype=DT_STRING, string_val=[indented.encode()]),
    )
