"""What counts as a difference, and which variables of two runs are the same."""

import msgspec
import pytest
import traces
from traces import block, request, step, update

from tracer.api import CallTrace
from tracer.model.compare import differences, match
from tracer.model.records import Run


@pytest.mark.parametrize("name", traces.ALL)
def test_a_trace_does_not_differ_from_itself(name: str) -> None:
    assert not any(differences(traces.ALL[name](), traces.ALL[name]()))


@pytest.mark.parametrize(
    ("before", "after", "renamed", "single"),
    [
        (["a/kernel", "a/bias"], ["a/bias", "a/kernel"], [], 0),
        (["dense_1/kernel"], ["dense/kernel"], [("dense_1", "dense")], 0),
        (
            ["dense/kernel", "dense_1/kernel"],
            ["dense_1/kernel", "dense_2/kernel"],
            [("dense", "dense_1"), ("dense_1", "dense_2")],
            0,
        ),
        (
            ["dense_2/kernel", "dense_10/kernel"],
            ["dense_1/kernel", "dense/kernel"],
            [("dense_2", "dense"), ("dense_10", "dense_1")],
            0,
        ),
        (["dense/kernel", "dense_1/kernel"], ["dense_1/kernel"], [], 1),
        (
            ["model_1/dense_4/kernel", "model_1/conv2d/kernel"],
            ["model/dense/kernel", "model/conv2d/kernel"],
            [("model_1/dense_4", "model/dense"), ("model_1/conv2d", "model/conv2d")],
            0,
        ),
        (
            ["Variable_3", "Variable_4"],
            ["Variable", "Variable_1"],
            [("Variable_3", "Variable"), ("Variable_4", "Variable_1")],
            0,
        ),
        (["a/kernel#2"], ["a_1/kernel#2"], [("a", "a_1")], 0),
        (["a/kernel"], ["b/kernel"], [], 2),
        (["a/kernel", "a/bias"], ["a_1/kernel"], [("a", "a_1")], 1),
    ],
)
def test_names(
    before: list[str], after: list[str], renamed: list[tuple[str, str]], single: int
) -> None:
    pairs, found, only = match(before, after)
    assert (found, len(only)) == (renamed, single)
    assert len(pairs) == (len(before) + len(after) - single) // 2


def _trace(*runs: Run, of: tuple[int, ...] = (0, 1), sparse: bool = False) -> CallTrace:
    kind = "sparse" if sparse else "dense"
    work = [step(), request(0, 1), update(*of, kind="sparse" if kind == "sparse" else "dense")]
    return traces.keras3(("a", "b"), (block(work, *runs),), ())


def test_where_steps_differ_with_equal_totals() -> None:
    def once(at: int) -> CallTrace:
        every = block([step(), request(0)], Run(1, 1, 9))
        return traces.keras3(("a",), (every, block([update(0)], Run(at, 1, 1), is_step=False)), ())

    (found,) = differences(once(3), once(5))
    assert [(each.name, each.before, each.after, each.where) for each in found.variables] == [
        ("a", 1, 1, "3: 1 to 0; 5: 0 to 1")
    ]
    assert [(each.name, each.before, each.after) for each in found.runs] == [
        ("3", 1, 0),
        ("5", 0, 1),
    ]
    assert not found.steps and not found.methods


def test_a_kind_that_changed() -> None:
    (found,) = differences(_trace(Run(1, 1, 5)), _trace(Run(1, 1, 5), sparse=True))
    assert {each.where for each in found.variables} == {"1-5: dense 1 to 0, sparse 0 to 1"}


def test_more_steps() -> None:
    (found,) = differences(_trace(Run(1, 1, 5)), _trace(Run(1, 1, 8)))
    assert [(each.name, each.before, each.after) for each in found.steps] == [("replica 0", 5, 8)]
    assert {each.where for each in found.variables} == {"6-8: no step to 1"}


def test_optimizers_are_matched_by_class() -> None:
    both = traces.two_optimizers()
    swapped = (
        both.data.optimizers[0],
        msgspec.structs.replace(both.data.optimizers[1], class_name="other.SGD"),
    )
    other = CallTrace(msgspec.structs.replace(both.data, optimizers=swapped))
    assert [bool(each) for each in differences(both, other)] == [False, True]
    assert len(differences(traces.eager(), traces.nothing())) == 1
