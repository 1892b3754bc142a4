"""The text report: golden files, and what must hold of every trace and every width."""

import csv
import io
import json
import re
import time
from collections import Counter
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, strategies as st
from rich.cells import cell_len
from support import traces
from support.golden import assert_golden
from support.traces import block, called, request, step, update

from tracer.api import CallTrace
from tracer.errors import UnknownName, shown
from tracer.findings import run_rules
from tracer.kinds import TORCH
from tracer.model.evidence import OverrideUnreached
from tracer.model.measures import updates
from tracer.model.merge import combine
from tracer.model.phrases import brand_of, reason
from tracer.model.records import (
    Block,
    Effect,
    Entry,
    Graph,
    Kind,
    Line,
    Method,
    Optimizer,
    Replica,
)
from tracer.model.runs import Run
from tracer.model.summary import Summary, summaries_of
from tracer.model.trace import Trace
from tracer.reporters import formats
from tracer.reporters.answer import answer, question
from tracer.reporters.columns import By
from tracer.reporters.text import render

TABLES: Sequence[By] = ("variable", "step", "replica", "worker", "method", "caller", "layer")


# Golden files.


@pytest.mark.parametrize("name", traces.ALL)
def test_report(name: str) -> None:
    assert_golden(f"reporters/{name}.txt", render(traces.ALL[name]()))


@pytest.mark.parametrize("by", TABLES)
def test_processes_of_pytorch_are_ranks(by: By) -> None:
    trace = traces.uneven_replicas()
    ranks = tuple(Replica(f"rank:{each}", 0, "cpu") for each in range(len(trace.replicas)))
    said = render(traces.changed(trace, replicas=ranks), by)
    said = said.replace("under MirroredStrategy", "").replace("replicas-disagree", "")
    assert "replica" not in said and re.search(r" 2 variables,\s4\sranks\n", said)
    if by == "replica":
        table = said[said.index("\nrank ") :].splitlines()
        assert "worker" not in table[1] and table[2].startswith("0 ")


@pytest.mark.parametrize("by", TABLES)
def test_one_table(by: By) -> None:
    trace = traces.uneven_replicas()
    assert_golden(f"reporters/uneven_replicas.{by}.txt", render(trace, by))


@pytest.mark.parametrize("by", [None, "variable", "step", "replica", "worker", "method"])
@pytest.mark.parametrize("name", traces.ALL)
def test_who_called_changes_no_other_table(name: str, by: By | None) -> None:
    """Blocks that differ in their path alone are told as one."""
    trace = traces.ALL[name]()
    blocks = [part for each in trace.blocks for part in of_callers(each)]
    data = msgspec.structs.replace(
        trace.data,
        blocks=tuple(blocks),
        lines=(Line("main", "train.py", 1), Line("main", "train.py", 2)),
        paths=((0,), (1,)),
        calls=tuple(msgspec.structs.replace(each, path=None) for each in trace.data.calls),
        graph_tracings=(),
    )
    plain = msgspec.structs.replace(data, blocks=tuple(map(of_nobody, trace.blocks)))
    assert render(CallTrace(data), by) == render(CallTrace(plain), by)


def of_nobody(block: Block) -> Block:
    return msgspec.structs.replace(block, path=None)


def of_callers(block: Block) -> list[Block]:
    """Two callers, who took turns in every run of the block."""
    parts: list[list[Run]] = [[], []]
    for run in block.runs:
        for number, part in enumerate(parts):
            count = (run.count + 1 - number) // 2
            if count:
                begin = run.first + number * run.stride
                part.append(Run(begin, 2 * run.stride if count > 1 else 1, count, run.times))
    first, second = parts
    of_second = sum(run.total for run in second)
    replace = msgspec.structs.replace
    return [
        replace(block, path=0, total=block.total - of_second, runs=tuple(first)),
        replace(block, path=1, total=of_second, runs=tuple(second), graphs=0, idle=0),
    ]


@pytest.mark.parametrize("width", [40, 200])
@pytest.mark.parametrize("name", ["embedding_on_two_replicas", "many_variables"])
def test_narrow_and_wide(name: str, width: int) -> None:
    assert_golden(f"reporters/{name}.{width}.txt", render(traces.ALL[name](), width=width))


@pytest.mark.parametrize("name", ["several_callers", "many_variables", "never_ran"])
@pytest.mark.parametrize("by", ["caller", "layer"])
def test_callers_and_layers(name: str, by: By) -> None:
    assert_golden(f"reporters/{name}.{by}.txt", render(traces.ALL[name](), by))


def test_colors() -> None:
    assert_golden("reporters/no_gradients.ansi", render(traces.no_gradients(), color=True))


# What the answer says.


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([Run(1, 1, 9)], "update_step ran once a step: 9 executions in 9 steps."),
        ([Run(1, 1, 1)], "update_step ran once a step: 1 execution in 1 step."),
        (
            [Run(1, 1, 6), Run(7, 1, 3, 2)],
            "update_step ran 1 or 2 times, mostly 1, a step: 12 executions in 9 steps.",
        ),
        (
            [Run(3, 3, 3)],
            "update_step ran once every 3rd step: "
            "3 executions in 9 steps, 6 of which updated nothing (accumulating, it seems).",
        ),
        (
            [Run(4, 4, 2)],
            "update_step ran once in each of 2 steps: "
            "2 executions in 9 steps, 7 of which updated nothing.",
        ),
        (
            [Run(2, 3, 2)],
            "update_step ran once in each of 2 steps: "
            "2 executions in 9 steps, 7 of which updated nothing.",
        ),
        (
            [Run(9, 1, 1)],
            "update_step ran once in 1 step: 1 execution in 9 steps, 8 of which updated nothing.",
        ),
    ],
)
def test_answer_in_steps(runs: Sequence[Run], expected: str) -> None:
    counted = max(9 if runs[0].last > 1 else 1, 1)
    blocks = (
        block([step(), request(0)], Run(1, 1, counted), graphs=1),
        block([update(0)], *runs, is_step=False, graphs=1),
    )
    trace = traces.keras3(("a",), blocks, (called(1, (0,), tracing=1),))
    second = "Its Python body was called once, while tracing 1 graph."
    assert answer(trace) == f"{expected} {second}"


def test_answer_names_both_contexts() -> None:
    blocks = (
        block([step(), update(0)], Run(1, 1, 2)),
        block([step(), update(0)], Run(3, 1, 7), graphs=1),
    )
    trace = traces.keras3(("a",), blocks, (called(1, (0,), eager=2, tracing=1),))
    assert answer(trace) == (
        "update_step ran once a step: 9 executions in 9 steps. "
        "Its Python body was called 3 times: 2 eagerly, 1 while tracing 1 graph."
    )


def test_answer_tells_two_replicas_apart() -> None:
    blocks = (
        block([step(), update(0, 1)], Run(1, 1, 5), graphs=1),
        block([step(), update(0)], Run(1, 1, 4), replica=1, graphs=1),
    )
    trace = traces.changed(traces.embedding_on_two_replicas(), blocks=blocks, calls=())
    assert answer(trace) == (
        "_resource_apply_dense ran twice a step on replica 0 and once a step on replica 1: "
        "14 executions in 4 to 5 steps. "
        "Its Python body was not called while the tracer watched."
    )


def by_pytorch(*blocks: Block) -> CallTrace:
    """The same blocks as steps of `torch.optim`, in which no method makes the updates."""
    optimizer = Optimizer("SGD", "torch.optim.sgd.SGD", "torch", 0)
    trace = traces.keras3(("weight",), blocks, (), methods=(Method("step", "step"),))
    return traces.changed(trace, optimizers=(optimizer,), environment={"torch": "2.9.0"})


def compiled(block: Block) -> Block:
    """In a graph that this process did not trace."""
    return msgspec.structs.replace(block, context="graph")


STEP = block([step(), request(0)], Run(1, 1, 5))
DIRECT = block([update(0)], is_step=False, total=3, outside=True)


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        (by_pytorch(STEP), "No update was made: 0 updates in 5 steps"),
        (by_pytorch(STEP), "step was called 5 times."),
        (
            by_pytorch(STEP, block([update(0, method=0, role="discarded")], Run(1, 1, 5))),
            "No update was kept: 0 updates in 10 steps",
        ),
        (
            by_pytorch(STEP, block([update(0, method=0)], Run(3, 1, 3))),
            "Each of 3 steps made 1 update: 3 updates in 8 steps, 5 of which updated nothing",
        ),
        (traces.keras3(("a",), (STEP, DIRECT), ()), "update_step ran 3 times, outside any step."),
        (
            traces.keras3(("a",), (), (called(1, (0,), tracing=1),)),
            "Its Python body was called once, while tracing.",
        ),
        (
            traces.keras3(
                ("a",), (compiled(block([step(), request(0), update(0)], Run(1, 1, 5))),), ()
            ),
            "Its Python body was not called: what ran is compiled.",
        ),
    ],
)
def test_answer_in_rare_cases(trace: CallTrace, expected: str) -> None:
    assert expected in answer(trace)


@pytest.mark.parametrize(
    ("nth", "said"), [(2, "2nd"), (3, "3rd"), (11, "11th"), (12, "12th"), (21, "21st")]
)
def test_answer_writes_ordinals(nth: int, said: str) -> None:
    blocks = (
        block([step(), request(0)], Run(1, 1, 10 * nth), graphs=1),
        block([update(0)], Run(nth, nth, 10), is_step=False, graphs=1),
    )
    assert f"update_step ran once every {said} step:" in answer(traces.keras3(("a",), blocks, ()))


def test_question_names_the_method_that_people_override() -> None:
    trace = traces.embedding_on_two_replicas()
    assert question(trace) == "How often did _resource_apply_dense and _resource_apply_sparse run?"


# What must hold of every report.


@pytest.mark.parametrize("name", traces.ALL)
@pytest.mark.parametrize("width", [40, 57, 80, 200])
@pytest.mark.parametrize("by", [None, *TABLES])
def test_fits_and_is_plain(name: str, width: int, by: By | None) -> None:
    text = render(traces.ALL[name](), by, width=width)
    for line in text.removesuffix("\n").split("\n"):
        assert line == line.rstrip()
        assert line.isprintable()
        # A word that is longer than the width is left whole, so that it can be copied.
        assert cell_len(line) <= max(width, max(map(cell_len, line.split(" "))) + 2), line


def test_unknown_table() -> None:
    with pytest.raises(UnknownName, match="no table 'line': by is one of variable, step"):
        render(traces.eager(), "line")  # type: ignore[arg-type]  # that is the test


@pytest.mark.parametrize("name", sorted(set(traces.ALL) - {"nothing"}))
def test_rows_add_up_to_the_answer(name: str) -> None:
    """The steps' rows, each times its steps, and the rows without a step, are all updates."""
    trace = traces.ALL[name]()
    for root in {optimizer.root for optimizer in trace.optimizers}:
        summary = Summary(trace, root)
        in_steps = sum(count * steps for (count,), steps in summary.spread(updates).items())
        rest = summary.step_unknown(updates) + summary.outside(updates)
        assert in_steps + rest == summary.total(updates)
        assert summary.total(updates) == trace.updates(optimizer=trace.optimizers[root].name)


def test_many_odd_steps_are_limited_and_it_says_so() -> None:
    runs = [Run(at * at, 1, 1) for at in range(1, 100)]
    trace = traces.keras3(
        ("a",),
        (
            block([step(), request(0)], Run(1, 1, 9801), graphs=1),
            block([update(0)], *runs, is_step=False, graphs=1),
        ),
        (called(1, (0,), tracing=1),),
    )
    assert '... and 167 more rows, 68 of them odd: by="step" has them all' in render(trace)
    full = render(trace, "step")
    assert "more rows" not in full
    assert "\n9,801 " in full


def of_workers(count: int) -> CallTrace:
    """3 steps on one replica of each worker; the last one made a step less."""
    work = [step(), request(0), update(0)]
    blocks = [block(work, Run(1, 1, 3), replica=each) for each in range(count - 1)]
    blocks.append(block(work, Run(1, 1, 2), replica=count - 1))
    workers = tuple(Replica(f"worker:{each}", 0, "CPU:0") for each in range(count))
    return traces.changed(traces.keras3(("a",), tuple(blocks), ()), replicas=workers)


def test_a_long_table_shows_the_first_rows_and_says_how_to_see_the_others() -> None:
    names = [f"layer_{index}/kernel" for index in range(40)]
    work = [step(), request(*range(40)), update(*range(5))]  # the other 35 are odd
    variables = traces.keras3(names, (block(work, Run(1, 1, 2)),), ())
    text = render(variables, width=120)
    assert '... and 10 more rows, 5 of them odd: by="variable" has them all' in text
    assert "layer_0/kernel" not in text.split("\n\n")[-3]
    assert "more rows" not in render(variables, "variable")
    workers = of_workers(35)
    assert '... and 5 more rows: by="worker" has them all' in render(workers)
    assert "... and 5 more rows: --by worker has them all" in render(workers, command=True)
    assert "\nworker:34 " in render(workers) and "\nworker:29 " not in render(workers)
    assert render(workers, "worker").count("\nworker:") == 35
    replicas = traces.trained(["a"], Run(1, 1, 2), replicas=1003)
    said = "... and 3 more rows: --by replica --format csv has them all"
    assert said in render(replicas, "replica")


def test_a_worker_that_is_behind_is_odd() -> None:
    (late,) = [line for line in render(of_workers(20), color=True).splitlines() if "since" in line]
    assert late.startswith("\x1b[1;33mworker:19") and "1 since step 3" in late


def test_workers_of_different_size_are_not_behind_one_another() -> None:
    workers = [Replica(f"worker:{each // 2}", each % 2, "CPU:0") for each in range(3)]
    trace = traces.changed(traces.trained(["a"], Run(1, 1, 3), replicas=3), replicas=tuple(workers))
    text = render(trace, "worker")
    assert "\nworker:1 " in text and "behind" not in text


def test_a_replica_that_ran_fewer_steps_is_odd_also_if_it_updated_as_often() -> None:
    blocks = (
        block([step(), request(0), update(0)], Run(1, 1, 4)),
        block([step(), request(0), update(0), update(0)], Run(1, 1, 2), replica=1),
    )
    text = render(traces.keras3(("a",), blocks, ()), "replica", color=True)
    assert "\x1b[1;33m1 " in text and "\x1b[1;33m0 " not in text


def test_an_optimizer_that_updated_nothing_is_a_fault_among_many() -> None:
    trace = traces.many_optimizers()
    blocks = tuple(each for each in trace.blocks if each.root != 4)
    text = render(traces.changed(trace, blocks=blocks), color=True)
    (fault,) = [line for line in text.splitlines() if line.startswith("\x1b[1;31mAdam")]
    assert '"adam_4"' in fault


def test_the_steps_of_several_optimizers_are_those_that_lightning_counts() -> None:
    steps = "the global_step of each Lightning Trainer counts its own optimizers"
    for versions, said in (({"torch": "2"}, False), ({"torch": "2", "lightning": "2"}, True)):
        trace = traces.two_optimizers()
        optimizers = [msgspec.structs.replace(each, kind=TORCH) for each in trace.optimizers]
        trace = traces.changed(trace, optimizers=tuple(optimizers), environment=versions)
        assert (steps in " ".join(render(trace).split())) == said


def test_a_method_that_nothing_calls_is_named_among_many_optimizers() -> None:
    trace = traces.many_optimizers()
    unreached = OverrideUnreached("_resource_apply_dense", "update_step", "model.py:7")
    first, *others = trace.optimizers
    optimizers = (msgspec.structs.replace(first, evidence=(unreached,)), *others)
    text = render(traces.changed(trace, optimizers=optimizers))
    assert "_resource_apply_dense of Adam (model.py:7) never ran: Keras 3 calls\n" in text


def test_a_long_table_is_cut_and_says_how_to_see_the_rest() -> None:
    names = [f"layer_{index}_of_many/kernel" for index in range(1001)]
    text = render(traces.trained(names, Run(1, 1, 2)), "layer")
    assert "... and 1 more row: --by layer --format csv has them all" in text
    assert "layer_999_of_many" in text and "layer_1000_of_many" not in text


def test_an_optimizer_of_one_worker_names_it() -> None:
    one, other = of_workers(2), of_workers(2)
    parts = [(each.data, [None]) for each in (one, other)]
    both = Trace(combine(parts)[0])
    first = [each for each in both.blocks if each.root != 0 or each.replica == 1]
    data = msgspec.structs.replace(both.data, blocks=tuple(first))
    assert ", in worker:1" in render(Trace(data))


@pytest.mark.parametrize(
    ("compared", "expected"),
    [(Run(1, 1, 10), False), (Run(1, 1, 6), True)],
)
def test_steps_in_which_nothing_was_compared_have_a_dash(compared: Run, expected: bool) -> None:
    trace = traces.with_effects()
    effects = (Effect(0, 0, "compared", (0, 1), compared.count, (compared,)), trace.data.effects[1])
    text = render(traces.changed(trace, effects=effects), "step")
    assert ("(-: none was compared in these steps)" in text) == expected
    assert (text.split("\n7")[-1].split("\n")[0].split()[-2:] == ["-", "-"]) == expected


def test_steps_that_were_not_recorded_say_so() -> None:
    blocks = (
        block([step(), request(0)], Run(1, 1, 4), Run(7, 1, 4), total=10, graphs=1),
        block([update(0)], Run(1, 1, 4), Run(7, 1, 4), is_step=False, graphs=1),
    )
    text = render(traces.keras3(("a",), blocks, ()), "step")
    assert re.search(r"\n5-6 .* 0   not recorded\n", text)
    assert "\nstep not known         0       0        0   in all; steps below" in text


@pytest.mark.parametrize(
    ("class_name", "kind", "environment", "expected"),
    [
        ("keras.src.optimizers.adam.Adam", "keras3", {}, "Keras 3"),
        ("keras.optimizers.legacy.adam.Adam", "legacy", {}, "Keras 2 legacy"),
        ("keras.optimizers.adam.Adam", "keras2", {"tf_keras": "2.16"}, "Keras 2"),
        ("tensorflow.python.keras.adam.Adam", "legacy", {}, "tensorflow.python.keras legacy"),
        ("my.Adam", "legacy", {"tf_keras": "2.16"}, "tf_keras legacy"),
        ("my.Adam", "keras2", {}, "Keras 2"),
        ("torch.optim.adam.Adam", "torch", {}, "torch.optim"),
        ("optax.adam", "optax", {}, "optax"),
    ],
)
def test_the_library_of_an_optimizer_is_named_as_people_call_it(
    class_name: str, kind: str, environment: dict[str, str], expected: str
) -> None:
    trace = traces.changed(traces.eager(), environment=environment)
    assert brand_of(Optimizer("adam", class_name, kind, 0), trace) == expected


def test_a_million_steps_take_no_longer() -> None:
    start = time.thread_time()
    text = render(traces.accumulation(steps=1_000_000, every=4))
    assert time.thread_time() - start < 1
    assert "1-3, 5-7 … 999,997-999,999         0       0        0" in text
    assert "4, 8 … 1,000,000                   4       4        0" in text
    assert len(text.splitlines()) < 30


def test_epochs_with_a_partial_batch_fold() -> None:
    full = tuple(Run(1 + 17 * epoch, 1, 16) for epoch in range(2000))
    blocks = (
        block([step(), request(0), update(0)], *full, graphs=1),
        block([step(), request(0)], Run(17, 17, 2000), graphs=1),
    )
    start = time.thread_time()
    text = render(traces.keras3(("a",), blocks, ()), "step")
    assert time.thread_time() - start < 2
    assert "1-16, 18-33 … 33,984-33,999" in text
    assert "17, 34 … 34,000" in text


def test_a_cycle_with_many_parts_is_written_out() -> None:
    runs = [Run(first, 40, 50) for first in (1, 4, 9, 16, 25, 36)]
    blocks = (
        block([step(), request(0)], Run(1, 1, 2000), graphs=1),
        *(block([update(0)], run, is_step=False, graphs=1) for run in runs),
    )
    assert "more rows, " in render(traces.keras3(("a",), blocks, ()))


def test_steps_of_the_optimizer_inside_are_no_steps() -> None:
    """An inner `apply` is a step entry of its own method, on one replica that ran 3 steps."""
    blocks = (
        block([step(), step(), request(0), update(0)], Run(1, 1, 3), graphs=1),
        block([step(), request(0), update(0)], Run(1, 1, 2), replica=1, graphs=1),
    )
    text = render(traces.keras3(("a",), blocks, ()))
    assert "\n3                    1       1        0   on 1 of 2 replicas" in text


# Calm where all is well.


def with_optimizer(trace: CallTrace, **changes: object) -> CallTrace:
    first = msgspec.structs.replace(trace.optimizers[0], **changes)
    return CallTrace(msgspec.structs.replace(trace.data, optimizers=(first,)))


def with_graphs(trace: CallTrace, *graphs: Graph) -> CallTrace:
    return CallTrace(msgspec.structs.replace(trace.data, graphs=graphs))


def test_a_first_tracing_that_never_ran_is_told_in_the_details_only() -> None:
    usual = Graph(0, 0, "train_function", "x: float32[32, 4]", 2, 1, 64, 0)
    trace = with_graphs(traces.accumulation(), usual)
    assert trace.answer().endswith("all while tracing 2 graphs.")
    assert "(graphs that never ran are usual: a first tracing only makes" in render(trace)
    assert not [each for each in trace.findings() if each.code == "graph-never-ran"]


def test_another_graph_that_never_ran_is_told() -> None:
    other = Graph(0, 0, "train_function", "x: float32[?, 4]", 1, 1, 0, 0)
    ran = Graph(0, 0, "train_function", "x: float32[32, 4]", 1, 0, 64, 0)
    trace = with_graphs(traces.accumulation(), ran, other)
    assert trace.answer().endswith("2 graphs; 1 of them never ran.")
    assert "usual" not in render(trace)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"settings": {"gradient_accumulation_steps": 4}}, "accumulated (4 steps)"),
        ({}, "accumulating, it seems"),
        ({"class_name": "keras.LossScaleOptimizer"}, "skipped by the loss scale"),
    ],
)
def test_steps_without_updates_say_why_and_are_no_fault(
    changes: dict[str, object], reason: str
) -> None:
    text = render(with_optimizer(traces.accumulation(), **changes), color=True)
    (line,) = [line for line in text.splitlines() if "61-63" in line]
    assert line.endswith(f"0   {reason}")  # and no colour
    plain = reason.replace(" (", ", ").rstrip(")")
    assert f"updated nothing ({plain})" in " ".join(text.split())


def test_a_loss_scale_that_finds_no_scale_is_a_fault() -> None:
    work = [step(), request(0)]
    blocks = (
        block(work, Run(1, 1, 40), graphs=1),
        block([update(0)], Run(1, 1, 10), is_step=False, graphs=1),
    )
    trace = with_optimizer(traces.keras3(("a",), blocks, ()), class_name="keras.LossScaleOptimizer")
    assert "\x1b[1;33m11-40" in render(trace, color=True)


def test_a_loss_scale_that_skipped_all_steps_is_named_in_each_place() -> None:
    trace = traces.all_skipped()
    assert "update_step never ran: 0 executions in 40 steps (skipped by the loss" in trace.answer()
    assert trace.answer().endswith("while tracing 2 graphs, in a part that no step reached.")
    text = render(trace, color=True)
    assert "never updated: skipped by the loss scale" in text
    assert re.search(r"\x1b\[1;33m1-40 .*skipped by the loss scale", text)
    assert "gradients came" not in text
    told = " ".join(render(trace).split())
    assert "what else never ran is in a part of a graph that no step reached)" in told
    assert "graphs that never ran are usual" not in told


def test_findings_are_worked_out_once_for_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    work_out = run_rules._found
    times: Counter[str] = Counter()

    def counted(trace: Trace) -> dict[run_rules.Finding, set[int | None]]:
        times["worked out"] += 1
        return work_out(trace)

    monkeypatch.setattr(run_rules, "_found", counted)
    text = render(traces.all_skipped())
    assert times["worked out"] == 1
    assert text.count("warning[steps-skipped]") == 1


def test_a_fault_of_another_optimizer_is_not_shown_here() -> None:
    bad = traces.all_skipped()
    calm = with_optimizer(traces.accumulation(), class_name="keras.LossScaleOptimizer")
    parts = [(each.data, [None] * len(each.variables)) for each in (bad, calm)]
    one, other = summaries_of(Trace(combine(parts)[0]))
    assert (reason(one).text, reason(one).usual) == ("skipped by the loss scale", False)
    assert (reason(other).text, reason(other).usual) == ("skipped by the loss scale", True)


def test_steps_in_which_gradients_were_dropped_stay_a_fault() -> None:
    work = [step(), request(0)]
    blocks = (
        block(work, Run(1, 1, 40), graphs=1),
        block([update(0)], Run(1, 1, 10), Run(12, 1, 29), is_step=False, graphs=1),
    )
    text = render(traces.keras3(("a",), blocks, ()), color=True)
    assert "\x1b[1;33m11 " in text
    assert "gradients came, none was applied" in text


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


def test_what_a_step_is_is_said_each_time() -> None:
    several, single = traces.embedding_on_two_replicas(), traces.eager()
    variable = render(several, "variable").split("\n\n")[2]
    assert [line.split()[-1] for line in variable.splitlines()[1:2]] == ["and"]
    assert "(per step and replica: without the 1 step" in variable
    assert render(several, "step").split("\n\n")[2].startswith("step,\nall replicas ")
    assert render(single, "step").split("\n\n")[2].startswith("step ")


# Names.


@given(st.text())
def test_shown_names_are_one_printable_line(name: str) -> None:
    assert shown(name).isprintable()


# Printing.


class Terminal(io.StringIO):
    """A terminal without a size."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_a_file_gets_no_ansi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "33")
    file = io.StringIO()
    formats.print_report(traces.no_gradients(), file=file)
    assert file.getvalue() == render(traces.no_gradients())


def test_stdout_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    formats.print_report(traces.eager(), by="step")
    assert capsys.readouterr().out == render(traces.eager(), "step")


@pytest.mark.parametrize(
    ("variable", "value", "colored"),
    [("NO_COLOR", "", True), ("NO_COLOR", "1", False), ("TERM", "dumb", False)],
)
def test_a_terminal_gets_colors(
    variable: str, value: str, colored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(variable, value)
    file = Terminal()
    formats.print_report(traces.no_gradients(), file=file)
    assert ("\x1b[" in file.getvalue()) == colored
    plain = re.sub(r"\x1b\[[\d;]*m", "", file.getvalue())
    assert plain == render(traces.no_gradients())


def test_an_encoding_without_the_characters() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii", newline="\n")
    formats.print_report(traces.hostile_names(), file=file)
    file.flush()
    assert rb"\u5c64/\u30ab" in raw.getvalue()


def test_no_cell_of_a_csv_file_is_a_formula() -> None:
    """What OWASP lists: a text that begins with one of these is run by a spreadsheet."""
    names = [f"{begin}cmd|' /C calc'!A0" for begin in ("=", "+", "-", "@", "\t=", "\r=", "\uff1d")]
    trace = traces.trained([*names, "dense/kernel", "a=b-c"], Run(1, 1, 2))
    (optimizer,) = trace.optimizers
    evil = msgspec.structs.replace(optimizer, name='=HYPERLINK("http://x","y")')
    rows = list(csv.reader(io.StringIO(formats.as_csv(traces.changed(trace, optimizers=(evil,))))))
    cells = [cell for row in rows for cell in row]
    assert [cell for cell in cells if cell[:1] in ("=", "+", "-", "@", "\t", "\r", "\uff1d")] == []
    assert [row[1] for row in rows[-2:]] == ["dense/kernel", "a=b-c"]
    assert [row[1] for row in rows[1:5]] == [f"'{name}" for name in names[:4]]


def test_prose_is_narrower_than_a_wide_terminal() -> None:
    """A line over 100 cells belongs to a table: it has columns."""
    lines = render(traces.many_variables(), width=200).splitlines()
    assert max(map(len, lines)) > 100
    assert all("   " in line.strip() for line in lines if len(line) > 100)


def test_json_names_the_optimizers_inside_another_one() -> None:
    trace = traces.loss_scaled()
    (found,) = json.loads(formats.as_json(trace))["optimizers"]
    assert [found["class"], *found["nested"]] == [each.class_name for each in trace.optimizers]
    assert len(found["nested"]) == 1


def test_ranks_that_do_otherwise_are_said_in_one_sentence() -> None:
    made = traces.uneven_replicas().data
    kinds = [msgspec.structs.replace(each, kind=TORCH) for each in made.optimizers]
    two = [each for each in made.blocks if each.replica in (0, 2)]
    trace = traces.changed(
        CallTrace(made),
        optimizers=kinds,
        replicas=[made.replicas[0], made.replicas[2]],
        blocks=[msgspec.structs.replace(each, replica=each.replica // 2) for each in two],
        calls=(),
    )
    assert "; each step made 4 updates on " in trace.answer()


def four_ranks(odd: int, steps_without: Sequence[Run], kind: Kind = "dense") -> CallTrace:
    """Ranks with 5 steps, of which one rank updates nothing in some, with gradients of `kind`."""
    blocks = []
    for rank in range(4):
        runs = [Run(1, 1, 2), Run(4, 1, 2)] if rank == odd else [Run(1, 1, 5)]
        blocks.append(block([step(), request(0), update(0)], *runs, replica=rank))
    blocks.append(block([step(), request(0, kind=kind)], *steps_without, replica=odd))
    trace = traces.keras3(("w",), tuple(blocks), ())
    return traces.changed(
        trace,
        optimizers=[msgspec.structs.replace(each, kind=TORCH) for each in trace.optimizers],
        replicas=[Replica(f"rank:{rank}", 0, "") for rank in range(4)],
    )


@pytest.mark.parametrize("odd", [0, 3])
def test_a_rank_that_skipped_a_step_is_named(odd: int) -> None:
    skipped = four_ranks(odd, [Run(3, 1, 1)])
    every = "ach step made 1 update on 3 of 4 ranks", f"ach of 4 steps made 1 update on rank {odd}"
    first, second = every if odd else every[::-1]
    assert skipped.answer().startswith(f"E{first}; e{second}: 19 updates in 5 steps")
    assert [each.code for each in skipped.findings()] == ["replicas-disagree"]
    found = four_ranks(odd, [Run(3, 1, 1)], "none").findings()
    (missing,) = (each for each in found if each.code == "gradient-missing")
    said = f"w had no gradient (None) in 1 of 5 steps on rank {odd}, first in step 3."
    assert missing.text == said
