"""What counts as a difference, and which variables of two runs are the same."""

from collections.abc import Sequence
from typing import Literal

import pytest
from msgspec.structs import replace
from support import traces
from support.traces import block, request, step, update

from tracer.model.records import Replica
from tracer.model.timeline import Run
from tracer.model.trace import Trace
from tracer.reporters.comparison import Change, differences

FIVE = Run(1, 1, 5)


def rows(before: Trace, after: Trace, table: str = "updates of") -> list[Change]:
    return [change for change in differences(before, after) if change.table == table]


def names(before: Trace, after: Trace) -> list[str]:
    return [change.name for change in differences(before, after)]


@pytest.mark.parametrize("name", traces.ALL)
def test_a_trace_differs_from_others_and_not_from_itself(name: str) -> None:
    trace = traces.ALL[name]()
    assert not differences(trace, traces.ALL[name]())
    assert trace.executions() == 0 or differences(traces.nothing(), trace)


# Which variables are the same.


@pytest.mark.parametrize(
    ("before", "after", "alone"),
    [
        ("a/kernel a/bias", "a/bias a/kernel", ""),
        ("dense_1/kernel", "dense/kernel", ""),
        ("dense/kernel dense_1/kernel", "dense_1/kernel dense_2/kernel", ""),
        ("dense_9/kernel dense_10/kernel", "dense/kernel dense_1/kernel", ""),
        ("m_1/dense_4/kernel m_1/conv2d/kernel", "m/dense/kernel m/conv2d/kernel", ""),
        ("Variable_3 Variable_4", "Variable Variable_1", ""),
        ("a/kernel#2", "a_1/kernel#2", ""),
        ("0.weight 2.weight", "0.weight 2.weight", ""),
        # Layers came or went, and the others keep their names.
        ("dense/kernel dense_1/kernel", "dense_1/kernel", "dense/kernel"),
        ("a_1/kernel a_9/kernel", "a_2/kernel a_3/kernel a_9/kernel", "a_9/kernel"),
        ("dense/k dense_1/k", "dense_4/k dense_5/k dense_6/k", "dense_6/k"),
        ("a/kernel b/kernel", "a/kernel c/kernel", "b/kernel c/kernel"),
        ("b/kernel a/kernel a/bias", "b/kernel a_1/kernel", "a/bias"),
    ],
)
def test_names(before: str, after: str, alone: str) -> None:
    both = traces.trained(before.split(), FIVE), traces.trained(after.split(), FIVE)
    assert [row.name for row in rows(*both)] == alone.split()
    assert all((row.before, row.after) in ((5, None), (None, 5)) for row in rows(*both))
    assert bool(differences(*both)) == bool(alone)


def of_keras_2(names: Sequence[str]) -> Trace:
    """The same training as `traces.trained` has it, by an optimizer of tf_keras legacy."""
    trace = traces.trained(names, FIVE)
    (optimizer,) = trace.optimizers
    return traces.changed(
        trace,
        optimizers=(replace(optimizer, kind="legacy", class_name="tf_keras.SGD"),),
        methods=(traces.APPLY_GRADIENTS, traces.DENSE),
    )


OF_KERAS_2 = [f"{layer}/{word}" for layer in ("in", "dense_3", "dense_4") for word in "kb"]
OF_KERAS_3 = [f"net/{layer}/{word}" for layer in ("in", "dense", "dense_1") for word in "kb"]


def test_keras_2_against_keras_3() -> None:
    before, after = of_keras_2(OF_KERAS_2), traces.trained(OF_KERAS_3, FIVE)
    assert names(before, after) == names(after, before) == ["class"]


# Which counts differ.


def _trace(kind: Literal["dense", "sparse"]) -> Trace:
    work = [step(), request(0, 1, kind=kind), update(0, 1, kind=kind)]
    return traces.keras3(("a", "b"), (block(work, FIVE),), ())


def test_where_steps_differ_with_equal_totals() -> None:
    def once(at: int) -> Trace:
        every = block([step(), request(0)], Run(1, 1, 9))
        return traces.keras3(("a",), (every, block([update(0)], Run(at, 1, 1), is_step=False)), ())

    assert [change[1:] for change in differences(once(3), once(5))] == [
        ("replica", "replica 0: updates, in other steps", 1, 1),
        ("updates of", "a, in other steps", 1, 1),
        ("updates in", "step 3", 1, 0),
        ("updates in", "step 5", 0, 1),
    ]


def test_a_kind_that_changed() -> None:
    assert [row[2:] for row in rows(_trace("dense"), _trace("sparse"))] == [
        ("a", 5, None),
        ("b", 5, None),
        ("a, sparse", None, 5),
        ("b, sparse", None, 5),
    ]


def test_how_runs_were_recorded_makes_no_difference() -> None:
    parts = Run(4, 4, 2), Run(12, 8, 2), Run(16, 8, 2)
    one, other = traces.trained(["a"], Run(4, 4, 6)), traces.trained(["a"], *parts)
    assert not differences(one, other)


def of_ranks(*updates: Sequence[Run]) -> Trace:
    """Ranks with five steps each, which update the variable in these steps."""
    blocks = []
    for rank, runs in enumerate(updates):
        blocks.append(block([step(), request(0)], FIVE, replica=rank))
        blocks.append(block([update(0)], *runs, replica=rank, is_step=False))
    replicas = tuple(Replica(f"rank:{rank}", 0, "") for rank in range(len(updates)))
    return traces.changed(traces.keras3(("w",), tuple(blocks), ()), replicas=replicas)


ALL_BUT_3 = Run(1, 1, 2), Run(4, 1, 2)


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        # The other rank misses step 3: the sums are equal.
        (
            (ALL_BUT_3, [FIVE]),
            ([FIVE], ALL_BUT_3),
            [("rank 0: updates", 4, 5), ("rank 1: updates", 5, 4)],
        ),
        # Another step is missed.
        (
            ([FIVE], ALL_BUT_3),
            ([FIVE], [Run(1, 1, 4)]),
            [
                ("rank 1: updates, in other steps", 4, 4),
                ("w, in other steps", 9, 9),
                ("step 3", 1, 2),
                ("step 5", 2, 1),
            ],
        ),
        # All of them miss step 3.
        (
            ([FIVE], [FIVE]),
            (ALL_BUT_3, ALL_BUT_3),
            [
                ("rank 0: updates", 5, 4),
                ("rank 1: updates", 5, 4),
                ("update_step: executions", 10, 8),
                ("w", 10, 8),
                ("step 3", 2, 0),
            ],
        ),
    ],
)
def test_ranks_are_compared_by_their_totals(
    before: Sequence[Sequence[Run]],
    after: Sequence[Sequence[Run]],
    found: list[tuple[str, int | None, int | None]],
) -> None:
    assert [row[2:] for row in differences(of_ranks(*before), of_ranks(*after))] == found


def test_an_optimizer_more_leaves_the_other_what_it_is() -> None:
    gan = traces.two_optimizers()
    generator = traces.changed(
        gan,
        optimizers=gan.optimizers[:1],
        variables=gan.variables[:2],
        blocks=gan.data.blocks[:1],
        calls=gan.data.calls[:1],
    )
    _, other = gan.optimizers
    assert differences(generator, gan) == [
        Change(other.name, "optimizer", "class", None, other.class_name)
    ]
