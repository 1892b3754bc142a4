"""The tables of all formats: what a row stands for, and that rows add up."""

import re
from typing import Any

import pytest
from msgspec.structs import replace
from support import traces
from support.cost import at_most
from support.traces import block, called, request, step, update

from tracer.errors import UnknownName
from tracer.model.records import Entry, Graph, Line, Replica
from tracer.model.timeline import Run, Steps
from tracer.model.trace import Trace, summaries_of
from tracer.reporters.columns import By, Part, part_of, sections, table
from tracer.reporters.text import render


def rows_of(trace: Trace, by: By, *names: str) -> list[tuple[Any, ...]]:
    """The values of these columns in each row, for the first optimizer."""
    rows = table(summaries_of(trace)[0], by).rows
    return [tuple(row.values[name] for name in names) for row in rows]


def loss_scaled() -> Trace:
    """10 steps under a loss scale, whose updates are in a branch of the step; one was skipped."""
    lines = (
        Line("train", "train.py", 7),
        Line("train_step", graph=True),
        Line("LossScaleOptimizer.apply_gradients"),
        Line("Adam.apply"),
    )
    blocks = (
        block([step(), request(0, 1)], Run(1, 1, 10), graph=True),
        block([update(0, 1)], Run(1, 1, 4), Run(6, 1, 5), is_step=False, graph=True),
    )
    paths = ((0, 1, 2), (0, 1, 2, 3))
    placed = [replace(each, path=n) for n, each in enumerate(blocks)]
    calls = (called(1, (0, 1), tracing=1, path=1),)
    trace = traces.keras3(("kernel", "bias"), blocks, ())
    graphs = (Graph(0, 0, "train_function", "", 1, 0, 10, 0),)
    trace = traces.changed(trace, blocks=tuple(placed), calls=calls, graphs=graphs)
    return traces.changed(trace, lines=lines, paths=paths)


def test_a_step_and_its_parts_count_for_one_line() -> None:
    columns = "caller", "executions", "steps", "calls"
    assert rows_of(loss_scaled(), "caller", *columns) == [
        ("traced from train.py:7 train", 18, 10, 2)
    ]


@pytest.mark.parametrize("by", ["variable", "layer", "step", "replica"])
@pytest.mark.parametrize("name", traces.ALL)
def test_rows_add_up_to_the_trace(name: str, by: By) -> None:
    trace = traces.ALL[name]()
    for summary in summaries_of(trace):
        updates = 0
        for row in table(summary, by).rows:
            values: dict[str, Any] = dict(row.values)
            placed = row.of.within(1, summary.steps + 1) if isinstance(row.of, Steps) else 1
            updates += placed * (values["updates"] or 0)
        assert updates == trace.updates(optimizer=trace.optimizers[summary.root].name)


def test_a_line_that_called_what_never_ran_says_so() -> None:
    data = traces.several_callers().data
    made = traces.never_ran()
    calls = tuple(replace(each, path=3) for each in made.data.calls)
    blocks = tuple(replace(each, path=3) for each in made.data.blocks)
    trace = traces.changed(made, calls=calls, blocks=blocks, lines=data.lines, paths=data.paths)
    rows = [line.split() for line in render(trace, "caller").splitlines()]
    assert ["traced", "from", "train.py:41", "main", "0", "0", "2", "never", "ran"] in rows


# Layers.


@pytest.mark.parametrize(
    ("names", "layers"),
    [
        ("net/a/kernel net/a/bias net/b/kernel", ["net/a/*", "net/b/kernel"]),
        ("a a/b a/b/c", ["a", "a/*"]),
        ("head/kernel net/a/kernel net/b/c/kernel", ["head/kernel", "net/*"]),
    ],
)
def test_a_row_ends_at_the_first_part_that_differs(names: str, layers: list[str]) -> None:
    trace = traces.trained(names.split(), Run(1, 1, 3))
    assert [layer for (layer,) in rows_of(trace, "layer", "layer")] == layers


def test_a_layer_says_how_many_variables_were_never_updated() -> None:
    """Of three blocks one has a variable without an update, and one has no update at all."""
    names = [f"block_{n}/{part}" for n in range(3) for part in ("kernel", "bias")]
    work = [step(), request(*range(6)), update(0, 1, 2)]
    trace = traces.keras3(names, (block(work, Run(1, 1, 2)),), ())
    rows = rows_of(trace, "layer", "layer", "variables", "updates")
    assert rows == [("block_0/*", 2, 4), ("block_1/*", 2, 2), ("block_2/*", 2, 0)]
    text = render(trace, "layer")
    assert "  1 never updated\n" in text and "  never updated\n" in text


# What is odd in a row.


@pytest.mark.parametrize(
    ("compared", "expected"),
    [(Run(1, 1, 10), False), (Run(1, 1, 6), True)],
)
def test_steps_in_which_nothing_was_compared_have_a_dash(compared: Run, expected: bool) -> None:
    trace = traces.with_effects()
    effects = (traces.effect("compared", (0, 1), compared), trace.data.effects[1])
    text = render(traces.changed(trace, effects=effects), "step")
    assert (text.split("\n7")[-1].split("\n")[0].split()[-2:] == ["-", "-"]) == expected


def test_steps_that_were_not_recorded_say_so() -> None:
    blocks = (
        block([step(), request(0)], Run(1, 1, 4), Run(7, 1, 4), total=10, graph=True),
        block([update(0)], Run(1, 1, 4), Run(7, 1, 4), is_step=False, graph=True),
    )
    text = render(traces.keras3(("a",), blocks, ()), "step")
    assert re.search(r"\n5-6 .* 0   not recorded\n", text)
    assert "\nstep not known         0       0        0   in all; steps below" in text


def test_steps_of_the_optimizer_inside_are_no_steps() -> None:
    """An inner `apply` is a step entry of its own method, on one replica that ran 3 steps."""
    blocks = (
        block([step(), step(), request(0), update(0)], Run(1, 1, 3), graph=True),
        block([step(), request(0), update(0)], Run(1, 1, 2), replica=1, graph=True),
    )
    text = render(traces.keras3(("a",), blocks, ()))
    assert "\n3                    1       1        0   on 1 of 2 replicas" in text


@pytest.mark.parametrize(
    ("work", "note"),
    [
        ([], "nothing was passed"),
        ([request(0, kind="none")], "no gradient came"),
        ([request(0)], "gradients came, none was applied"),
        ([request(0), request(1, kind="none"), update(0)], "1 without gradient"),
    ],
)
def test_a_step_says_what_it_lacks(work: list[Entry], note: str) -> None:
    blocks = (
        block([step(), *work], Run(1, 1, 2)),
        block([step(), request(0, 1), update(0, 1)], Run(3, 1, 5)),
    )
    text = render(traces.keras3(("a", "b"), blocks, ()), "step")
    (line,) = [line for line in text.splitlines() if line.startswith("1-2 ")]
    assert line.endswith(note)


def test_a_replica_that_ran_fewer_steps_is_odd_also_if_it_updated_as_often() -> None:
    blocks = (
        block([step(), request(0), update(0)], Run(1, 1, 4)),
        block([step(), request(0), update(0), update(0)], Run(1, 1, 2), replica=1),
    )
    text = render(traces.keras3(("a",), blocks, ()), "replica", color=True)
    assert "\x1b[1;33m1 " in text and "\x1b[1;33m0 " not in text


def test_a_step_that_is_not_finite_is_shown_after_many_odd_ones() -> None:
    blocks = (
        block([step(), request(0)], Run(1, 1, 1700)),
        block([update(0)], *(Run(at * at, 1, 1) for at in range(1, 41)), is_step=False),
    )
    effects = (
        traces.effect("compared", (0,), Run(1, 1, 1700)),
        traces.effect("not_finite", (0,), Run(1690, 1, 1)),
    )
    assert "\n1,690 " in render(traces.changed(traces.keras3(("a",), blocks, ()), effects=effects))


def test_thousands_of_ranks_take_no_longer() -> None:
    trace = traces.trained(["a"], Run(1, 1, 9), replicas=4096)
    ranks = tuple(Replica(f"rank:{rank}", 0, "cpu") for rank in range(4096))
    with at_most(5_000_000):
        assert "\n999        9 " in render(traces.changed(trace, replicas=ranks), "replica")


# A part of a trace.


def shown(trace: Trace, by: By | None = None, **names: Any) -> str:
    return render(trace, by, part_of(trace, **names))


def test_a_part_of_a_trace_with_lost_steps_says_what_the_whole_says() -> None:
    """Rows are left out, and nothing else: a trace of these steps alone would be another one."""
    trace = traces.incomplete()
    whole, part = render(trace).splitlines(), shown(trace, step=range(1, 41)).splitlines()
    assert part[0] == "Only the rows of steps 1 to 40; what they count is of the whole run."
    assert set(part[1:]) < set(whole)
    assert "step not known        12      12        0   in all; steps below may have more" in part
    assert any(line.startswith("1-40 ") for line in part)
    assert not any(line.startswith("47-100 ") for line in part)
    assert any("INCOMPLETE" in line for line in part)


def test_a_rank_is_asked_for_by_its_number_or_worker() -> None:
    trace = traces.trained(["w"], Run(1, 1, 8), replicas=2)
    ranks = tuple(Replica(f"rank:{number}", 0, "cpu") for number in range(2))
    trace = traces.changed(trace, replicas=ranks)
    for name in ("1", "rank:1"):
        text = shown(trace, replica=name)
        assert "Only the rows of rank 1;" in text
        assert "\n1          8 " in text and "\n0          8 " not in text
    with pytest.raises(UnknownName, match="no replica '2'"):
        part_of(trace, replica="2")
    several = traces.uneven_replicas()
    assert shown(several, replica="worker:1").count("\nworker:1/") == 2


def test_a_row_of_recurring_steps_is_asked_for_by_any_of_them() -> None:
    labels = [
        row.values["steps"]
        for asked in (range(4, 5), range(61, 64), range(5, 9))
        for _, (table_of,) in sections(traces.accumulation(), "step", Part(rows={"step": asked}))
        for row in table_of.rows
    ]
    often, seldom = "1-3, 5-7 \u2026 61-63", "4, 8 \u2026 64"
    assert labels == [seldom, often, often, seldom]


def test_optimizers_without_the_rows_are_left_out() -> None:
    text = shown(traces.many_optimizers(), variable="part_3/*")
    assert "\npart_3/kernel" in text and text.count(" steps, 2 variables") == 1
