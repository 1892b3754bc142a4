"""What the report for TensorBoard holds, read back by TensorBoard's own reader."""

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageColor
from support import traces
from support.traces import block, called, request, step, update
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tracer.model.runs import Run
from tracer.model.trace import Trace, select
from tracer.reporters import colors, formats, tensorboard


def written(trace: Trace, folder: Path) -> Any:
    formats.write(trace, "tensorboard", None, folder)
    found = EventAccumulator(str(folder / "tracer"), size_guidance={"tensors": 0, "scalars": 0})
    return found.Reload()


def points(events: Any, tag: str) -> list[tuple[int, float]]:
    return [(each.step, each.value) for each in events.Scalars(tag)]


def test_equal_steps_have_a_point_at_each_end(tmp_path: Path) -> None:
    events = written(traces.embedding_on_two_replicas(), tmp_path)
    ends = (1, 32, 33, 34, 64)
    assert points(events, "tracer/updates/dense") == list(zip(ends, (8, 8, 0, 8, 8), strict=True))
    assert points(events, "tracer/updates/sparse") == list(zip(ends, (2, 2, 0, 2, 2), strict=True))
    assert points(events, "tracer/skipped") == list(zip(ends, (0, 0, 1, 0, 0), strict=True))


def test_the_report_and_the_heat_map_are_there(tmp_path: Path) -> None:
    trace = traces.no_gradients()
    events = written(trace, tmp_path)
    text = events.Tensors("tracer/report")[0]
    assert text.step == 20
    assert "update_step ran 1 or 2 times a step" in text.tensor_proto.string_val[0].decode()
    image = events.Images("tracer/heat map")[0]
    assert image.encoded_image_string.startswith(b"\x89PNG")
    assert image.step == 20
    assert image.width > 400
    assert image.height > 60


def test_steps_have_the_numbers_of_the_run(tmp_path: Path) -> None:
    part = select(traces.embedding_on_two_replicas(), steps=range(30, 41))
    events = written(part, tmp_path)
    assert [step for step, _ in points(events, "tracer/skipped")] == [30, 32, 33, 34, 40]
    assert events.Images("tracer/heat map")[0].step == 40


def test_a_million_steps_are_few_points_that_say_what_they_stand_for(tmp_path: Path) -> None:
    events = written(traces.accumulation(1_000_000, every=4), tmp_path)
    found = points(events, "tracer/updates/dense")
    assert len(found) == tensorboard.MOST_POINTS
    assert found[0] == (500, 1.0)  # 4 updates in each fourth step
    assert points(events, "tracer/skipped")[-1] == (1_000_000, 0.75)
    report = events.Tensors("tracer/report")[0].tensor_proto.string_val[0].decode()
    assert "a point is the mean of 500 steps" in report


def test_the_last_point_is_the_mean_of_the_steps_that_are_left(tmp_path: Path) -> None:
    """Of 10,001 steps each point stands for 6, and the last one for 9,997 to 10,001."""
    found = points(written(traces.accumulation(10_001, every=4), tmp_path), "tracer/updates/dense")
    steps, means = zip(*found[-2:], strict=True)
    assert steps == (9_996, 10_001)
    assert means == pytest.approx((8 / 6, 4 / 5))


def test_two_optimizers_have_tags_of_their_own(tmp_path: Path) -> None:
    events = written(traces.two_optimizers(), tmp_path)
    assert points(events, "tracer/adam/updates/dense") == [(1, 2), (10, 2)]
    assert points(events, "tracer/adam#2/updates/dense") == [(1, 1), (30, 1)]


def test_what_became_of_the_weights_if_it_is_known(tmp_path: Path) -> None:
    events = written(traces.with_effects(), tmp_path)
    ends = (1, 3, 4, 6, 7, 8, 9, 10)
    assert points(events, "tracer/unchanged") == list(
        zip(ends, (0, 0, 1, 1, 0, 0, 1, 1), strict=True)
    )
    assert points(events, "tracer/not_finite") == list(
        zip(ends, (0, 0, 0, 0, 0, 1, 1, 1), strict=True)
    )
    assert points(events, "tracer/updates/dense") == [(end, 2) for end in ends]
    without = written(traces.eager(), tmp_path)
    assert "tracer/unchanged" not in without.Tags()["scalars"]


def test_writing_again_replaces_what_was_written(tmp_path: Path) -> None:
    written(traces.eager(), tmp_path)
    events = written(traces.embedding_on_two_replicas(), tmp_path)
    assert len(points(events, "tracer/skipped")) == 5
    assert len(list((tmp_path / "tracer").iterdir())) == 1


def test_the_picture_marks_what_came_of_the_weights(tmp_path: Path) -> None:
    """Of 10 steps, 4 to 6 leave the kernel as it is, and the bias is not finite from 8 on."""
    image = written(traces.with_effects(), tmp_path).Images("tracer/heat map")[0]
    picture = Image.open(io.BytesIO(image.encoded_image_string)).convert("RGB")
    for mark, above_end, first, last in (("unchanged", 140, 0.3, 0.6), ("infinite", 100, 0.7, 1.0)):
        color, y = ImageColor.getrgb(colors.LIGHT[mark]), picture.height - above_end
        bar = [x for x in range(400) if picture.getpixel((300 + x, y)) == color]  # of 400 pixels
        assert (bar[0] / 400, bar[-1] / 400) == pytest.approx((first, last), abs=0.01)


@pytest.mark.parametrize("name", traces.ALL)
def test_every_trace_can_be_written(name: str, tmp_path: Path) -> None:
    trace = traces.ALL[name]()
    events = written(trace, tmp_path)
    assert "tracer/report" in events.Tags()["tensors"]
    assert bool(events.Tags()["scalars"]) == bool(trace.steps)


def test_many_rows_and_names_make_a_picture_of_a_size(tmp_path: Path) -> None:
    ids = range(60)
    work = [block([step(), request(*ids)], Run(1, 1, 900), graphs=1)]
    work += [block([update(each)], Run(each + 1, 1, 100), is_step=False) for each in ids]
    names = ["x" * 500 + f"<b>{each}" for each in ids]
    trace = traces.keras3(names, tuple(work), (called(1, ids, tracing=1),))
    image = written(trace, tmp_path).Images("tracer/heat map")[0]
    assert image.width < 1500
    assert image.height < 1200
