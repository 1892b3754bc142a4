"""The question and its answer: what is said, and that a rate multiplies to its total."""

import re

import msgspec
import pytest
from hypothesis import given, strategies as st
from support import traces
from support.traces import block, called, request, step, update

from tracer.model.evidence import ClassMethod
from tracer.model.records import Block, Graph, Kind, Method, Optimizer
from tracer.model.timeline import Run
from tracer.model.trace import Trace
from tracer.reporters.text import answer, render

TIMES = {"once": 1, "twice": 2}


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 3))
def test_a_rate_multiplies_to_its_total(counts: list[int], replicas: int) -> None:
    """The rate in a step, its steps and the replicas give the executions, or a range of them."""
    steps, blocks = len(counts), []
    for replica in range(replicas):
        blocks.append(block([step(), request(0)], Run(1, 1, steps), replica=replica))
        runs = [Run(at, 1, 1, n) for at, n in enumerate(counts, 1) if n]
        if runs:
            blocks.append(block([update(0)], *runs, is_step=False, replica=replica))
    trace = traces.trained(["a"], Run(1, 1, 1), replicas=replicas)
    said = answer(traces.changed(trace, blocks=tuple(blocks), calls=()))
    ran = re.match(
        r"update_step ran (?:(once|twice)|(\d+)(?: to (\d+))? times) "
        r"(?:a step|in (?:each of )?(\d+) steps?)(?: on each of (\d+) replicas)?: "
        r"(\d+) executions? in (\d+) steps?(?:; (\d+) of the steps updated nothing)?",
        said,
    )
    if ran is None:
        assert said.startswith(f"No apply method ran in {steps} step")
        assert not any(counts)
        return
    word, low, high, within, on, total, of, empty = ran.groups()
    least = TIMES[word] if word else int(low)
    places = int(within or of) * int(on or 1)
    assert least * places <= int(total) <= int(high or least) * places
    assert (int(total), int(of)) == (sum(counts) * replicas, steps)
    assert int(within or of) + int(empty or 0) == steps
    assert (least, int(high or least)) == (min(filter(None, counts)), max(counts))


def by_pytorch(*blocks: Block) -> Trace:
    """The same blocks as steps of `torch.optim`, in which no method makes the updates."""
    optimizer = Optimizer("SGD", "torch.optim.sgd.SGD", "torch", 0)
    trace = traces.keras3(("weight",), blocks, (), methods=(Method("step", "step"),))
    return traces.changed(trace, optimizers=(optimizer,), environment={"torch": "2.9.0"})


STEP = block([step(), request(0)], Run(1, 1, 5))
MISSING = block([step(), request(0, kind="none")], Run(1, 1, 5))
DIRECT = block([update(0)], is_step=False, total=3, outside=True)
EAGER = block([step(), update(0)], Run(1, 1, 2))
COMPILED = msgspec.structs.replace(
    block([step(), request(0), update(0)], Run(1, 1, 5)), context="graph"
)


def run(*blocks: Block, eager: int = 0, tracing: int = 0) -> Trace:
    calls = [called(1, (0,), eager=eager)] if eager else []
    calls += [called(1, (0,), tracing=tracing)] if tracing else []
    return traces.keras3(("a",), blocks, tuple(calls))


def by_own_methods(*kinds: Kind) -> Trace:
    """Updates of these kinds, by a class that defines the dense method."""
    methods = (traces.APPLY_GRADIENTS, traces.DENSE, traces.SPARSE)
    work = [step(), *(update(0, method=1 + (kind == "sparse"), kind=kind) for kind in kinds)]
    trace = traces.keras3(("a",), (block(work, Run(1, 1, 5)),), (), methods=methods)
    own = ClassMethod("own dense", "_resource_apply_dense", "mine.py:7")
    optimizer = Optimizer("mine", "my.Mine", "legacy", 0, evidence=(own,))
    return traces.changed(trace, optimizers=(optimizer,))


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        (
            run(EAGER, block([step(), update(0)], Run(3, 1, 7), graph=True), eager=2, tracing=1),
            "update_step ran once a step: 9 executions in 9 steps. "
            "Its Python body was called 3 times: 2 eagerly, 1 while tracing 1 graph.",
        ),
        (
            run(STEP, DIRECT),
            "update_step: 0 executions in 5 steps and 3 outside any step",
        ),
        (
            run(block([step(), update(0)], Run(1, 1, 3)), DIRECT),
            "update_step ran once a step: 3 executions in 3 steps and 3 outside any step",
        ),
        (
            run(tracing=1),
            "update_step never ran: 0 executions in 0 steps. "
            "Its Python body was called once, while tracing.",
        ),
        (run(COMPILED), "Its Python body was not called while the tracer watched."),
        (
            traces.incomplete(),
            "update_step: at least 200 executions in at least 100 steps; the step of 12 of them is",
        ),
        (traces.no_steps(), "Adam: 0 steps."),
        (
            by_own_methods("sparse"),
            "_resource_apply_dense of Mine (mine.py:7) never ran: every gradient that was applied "
            "was sparse. _resource_apply_sparse ran once a step",
        ),
        (by_own_methods("dense", "sparse"), "_resource_apply_sparse ran once a step"),
        (by_pytorch(STEP), "No update was made: 0 updates in 5 steps. step was called 5 times."),
        (
            by_pytorch(STEP, block([update(0, method=0, role="discarded")], Run(1, 1, 5))),
            "No update was kept: 0 updates in 10 steps; 5 results were thrown away.",
        ),
        (
            by_pytorch(STEP, block([update(0, method=0)], Run(3, 1, 3))),
            "Each of 3 steps made 1 update: 3 updates in 8 steps; 5 of the steps updated nothing",
        ),
        (by_pytorch(MISSING), "No update was made: 0 updates in 5 steps (no gradient came)."),
    ],
)
def test_what_is_said(trace: Trace, expected: str) -> None:
    assert expected in answer(trace)
    assert ("never ran" in answer(trace)) == ("never ran" in expected)


def with_graphs(trace: Trace, *graphs: Graph) -> Trace:
    return Trace(msgspec.structs.replace(trace.data, graphs=graphs))


def test_another_graph_that_never_ran_is_told() -> None:
    other = Graph(0, 0, "train_function", "x: float32[?, 4]", 1, 1, 0, 0)
    ran = Graph(0, 0, "train_function", "x: float32[32, 4]", 1, 0, 64, 0)
    trace = with_graphs(traces.accumulation(), ran, other)
    assert trace.answer().endswith("2 graphs; 1 of them never ran.")
    assert "usual" not in render(trace)


def test_a_loss_scale_that_skipped_all_steps_is_named_in_each_place() -> None:
    trace = traces.all_skipped()
    assert "update_step never ran: 0 executions in 40 steps (skipped by the loss" in trace.answer()
    assert trace.answer().endswith("both times while tracing 2 graphs.")
    text = render(trace)
    assert "never updated: skipped by the loss scale" in text
    assert re.search(r"\n1-40 .*skipped by the loss scale", text)
    assert "gradients came" not in text


def test_a_class_that_may_drop_gradients_is_named_with_the_loss_scale() -> None:
    """Such as one that accumulates: which of the two left a step out is not seen."""
    trace = traces.all_skipped()
    first, *others = trace.data.optimizers
    own = (*first.evidence, ClassMethod("own step", "apply"))
    optimizers = (msgspec.structs.replace(first, evidence=own), *others)
    trace = traces.changed(trace, optimizers=optimizers)
    named = f"skipped by the loss scale, or dropped by {first.class_name.rpartition('.')[2]}.apply"
    assert trace.answer().count(named) == 1
    (found,) = trace.findings()
    assert named in found.text
