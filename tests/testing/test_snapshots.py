"""Snapshots: what makes a trace another one than that of the snapshot, and what does not."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from support import traces
from support.golden import assert_golden

from tracer.api import CallTrace
from tracer.model.records import Variable
from tracer.model.runs import Run
from tracer.testing.snapshots import compare_with_snapshot, difference


def test_a_trace_is_as_itself() -> None:
    for make in traces.ALL.values():
        assert difference(make(), make()) == ""


def test_how_runs_were_recorded_makes_no_difference() -> None:
    def eager(*runs: Run) -> CallTrace:
        return traces.trained(["a"], *runs)

    whole, parts = eager(Run(4, 4, 6)), eager(Run(4, 4, 2), Run(12, 8, 2), Run(16, 8, 2))
    assert difference(whole, parts) == ""
    assert difference(eager(Run(1, 1, 8)), eager(Run(1, 1, 3), Run(4, 1, 5))) == ""


def test_a_layer_more_is_all_that_differs() -> None:
    def named(*names: str) -> CallTrace:
        return traces.trained(names, Run(1, 1, 3))

    two = named("dense_1/kernel", "dense_2/kernel")
    assert difference(two, named("dense_7/kernel", "dense_8/kernel", "dense_9/kernel")) == (
        "dense_9/kernel, update_step (dense): 0 to 3; 0 to 1 in steps 1-3\n\n"
        "Layers with other names, matched by order and shapes: dense_1 = dense_7, dense_2 = dense_8"
    )


def shaped(**shapes: tuple[int, ...]) -> CallTrace:
    """A trace in which one layer after the other has a kernel of the shape."""
    names = [f"{layer}/kernel" for layer in shapes]
    variables = tuple(
        Variable(name, shape, "float32") for name, shape in zip(names, shapes.values(), strict=True)
    )
    return traces.changed(traces.trained(names, Run(1, 1, 3)), variables=variables)


ONE = {"dense": (8, 4), "dense_1": (4, 2), "dense_2": (4, 4)}
ANOTHER = (
    "dense_8/kernel, update_step (dense): 0 to 3; 0 to 1 in steps 1-3\n\n"
    "Layers with other names, matched by order and shapes: dense_1 = dense_9"
)


@pytest.mark.parametrize(
    ("expected", "actual", "said"),
    [
        (ONE, {"dense_7": (4, 2), "dense_8": (8, 4), "dense_9": (4, 4)}, ""),
        ({"dense_1": (4, 2)}, {"dense_8": (8, 4), "dense_9": (4, 2)}, ANOTHER),
        (
            {"dense": (8, 4)},
            {"dense": (8, 5)},
            "dense/kernel is [8, 4] in the first and [8, 5] in the second",
        ),
        ({"dense": (8, 4)}, {"dense_3": (4, 2)}, None),
        ({"dense": (8, 4)}, {"dense": (4, 2)}, None),
        ({"dense": (8, 4), "dense_1": (4, 2)}, {"dense_4": (8, 4), "dense_6": (2, 2)}, None),
        ({"dense_1": (4, 2)}, {"dense_1": (8, 4), "dense_2": (4, 2)}, None),
    ],
)
def test_layers_are_matched_by_shapes_before_they_are_matched_in_order(
    expected: dict[str, tuple[int, ...]], actual: dict[str, tuple[int, ...]], said: str | None
) -> None:
    """A layer of another shape is another one; None stands for any text."""
    found = difference(shaped(**expected), shaped(**actual))
    assert found == said if said is not None else found


def test_versions_calls_and_graphs_make_no_difference() -> None:
    trace = traces.accumulation()
    other = traces.changed(
        trace,
        environment={"tensorflow": "3.0"},
        calls=(),
        blocks=tuple(replace(each, graphs=7, idle=3, function="f") for each in trace.blocks),
    )
    assert difference(trace, other) == ""


def test_executions_of_which_the_step_is_not_known_count() -> None:
    trace = traces.trained(["a"], Run(1, 1, 3))
    more = replace(trace.blocks[0], total=4)
    assert difference(trace, traces.changed(trace, blocks=(more,))) == (
        "apply_gradients: 3 to 4\na, update_step (dense): 3 to 4"
    )


def test_the_text_of_a_difference() -> None:
    changes = difference(traces.accumulation(64, 4), traces.accumulation(64, 8))
    assert_golden("testing/difference.txt", changes + "\n")


def test_a_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "new" / "one.json"

    def compare(trace: CallTrace, update: bool = False) -> str:
        return compare_with_snapshot(trace, path, "one.json", update=update, command="pytest -u")

    missing = "there is no snapshot one.json; to write it, run:\n\n  pytest -u"
    assert compare(traces.eager()) == missing
    assert "incomplete" in compare(traces.incomplete(), update=True)
    assert compare(traces.eager(), update=True) == compare(traces.eager()) == ""
    newer = traces.changed(traces.eager(), environment={"tensorflow": "3.0"})
    before = path.read_bytes()
    assert compare(newer, update=True) == ""
    assert path.read_bytes() == before, "it is as expected, so git must not see a change"
    assert "(first: the snapshot, second: now)" in compare(traces.applied_twice())
    assert compare(traces.applied_twice(), update=True) == compare(traces.applied_twice()) == ""


def test_a_snapshot_of_nothing_is_a_trace_too() -> None:
    nothing = traces.nothing()
    assert difference(nothing, nothing) == ""
    more = "the optimizer my.optimizers.SGD is only in the second trace"
    assert difference(nothing, traces.eager()) == more
