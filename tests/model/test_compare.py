"""What counts as a difference, and which variables of two runs are the same."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from support import traces
from support.traces import block, request, step, update

from tracer.api import CallTrace
from tracer.model.compare import Difference, differences
from tracer.model.records import (
    Effect,
    Line,
    Note,
    Observation,
    Rate,
    RateRun,
    Replica,
    Variable,
    with_indices,
)
from tracer.model.runs import Run
from tracer.reporters import comparison

FIVE = Run(1, 1, 5)


def rows(found: Difference, what: str) -> list[tuple[str, int | None, int | None, str]]:
    return [(each.name, each.before, each.after, each.where) for each in found.changes[what]]


def counts(found: Difference, what: str) -> list[tuple[str, int | None, int | None]]:
    return [row[:3] for row in rows(found, what)]


def changed(found: Difference) -> set[str]:
    return {what for what, changes in found.changes.items() if changes}


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
        (["dense/kernel", "dense_1/kernel"], ["dense_7/kernel", "dense_7/kernel#2"], None, 2),
    ],
)
def test_names(
    before: list[str], after: list[str], renamed: list[tuple[str, str]] | None, single: int
) -> None:
    both = traces.trained(before, FIVE), traces.trained(after, FIVE)
    (found,) = differences(*both)
    assert bool(found) == bool(single)
    assert found.renamed == renamed or renamed is None
    assert len(found.one_sided) == single
    assert not found.reshaped


def _trace(*runs: Run, of: tuple[int, ...] = (0, 1), sparse: bool = False) -> CallTrace:
    kind = "sparse" if sparse else "dense"
    work = [step(), request(0, 1), update(*of, kind="sparse" if kind == "sparse" else "dense")]
    return traces.keras3(("a", "b"), (block(work, *runs),), ())


def test_where_steps_differ_with_equal_totals() -> None:
    def once(at: int) -> CallTrace:
        every = block([step(), request(0)], Run(1, 1, 9))
        return traces.keras3(("a",), (every, block([update(0)], Run(at, 1, 1), is_step=False)), ())

    (found,) = differences(once(3), once(5))
    assert rows(found, "updates") == [("a", 1, 1, "1 to 0 in step 3; 0 to 1 in step 5")]
    assert counts(found, "runs") == [
        ("3", 1, 0),
        ("5", 0, 1),
    ]
    assert changed(found) == {"updates", "runs"}


def test_a_kind_that_changed() -> None:
    (found,) = differences(_trace(Run(1, 1, 5)), _trace(Run(1, 1, 5), sparse=True))
    assert {row[3] for row in rows(found, "updates")} == {
        "dense 1 to 0, sparse 0 to 1 in steps 1-5"
    }


def test_more_steps() -> None:
    (found,) = differences(_trace(Run(1, 1, 5)), _trace(Run(1, 1, 8)))
    assert counts(found, "steps") == [("in all", 5, 8)]
    where = "1 in steps 6-8, which only the second trace has"
    assert {row[3] for row in rows(found, "updates")} == {where}


def test_what_steps_did_to_the_variables() -> None:
    def trained(*unchanged: Run, kernel_is_nan: Sequence[Run] = ()) -> CallTrace:
        seen: list[tuple[Observation, int, Sequence[Run]]] = [
            ("compared", 0, [FIVE]),
            ("compared", 1, [FIVE]),
            ("unchanged", 1, unchanged),
            ("not_finite", 0, kernel_is_nan),
        ]
        effects = tuple(
            Effect(0, 0, what, (index,), sum(run.total for run in runs), tuple(runs))
            for what, index, runs in seen
            if runs
        )
        return traces.changed(traces.trained(["a/kernel", "a/bias"], FIVE), effects=effects)

    healthy = trained()
    (found,) = differences(healthy, trained(Run(2, 2, 2), kernel_is_nan=[Run(5, 1, 1)]))
    assert found
    assert rows(found, "unchanged") == [("a/bias", 0, 2, "0 to 1 in step 2; 0 to 1 in step 4")]
    assert rows(found, "not_finite") == [("a/kernel", 0, 1, "0 to 1 in step 5")]
    assert changed(found) == {"unchanged", "not_finite"}
    unasked = traces.changed(healthy, effects=())
    assert not any(differences(trained(FIVE), unasked))
    assert "Only the first trace has effects, so" in comparison.render(healthy, unasked, [])


def test_optimizers_are_matched_by_class() -> None:
    both = traces.two_optimizers()
    swapped = (both.data.optimizers[0], replace(both.data.optimizers[1], class_name="other.SGD"))
    other = traces.changed(both, optimizers=swapped)
    assert [bool(each) for each in differences(both, other)] == [False, True]
    assert len(differences(traces.eager(), traces.nothing())) == 1


def test_a_worker_is_named_where_there_are_several() -> None:
    def steps(*counts: tuple[str, int]) -> CallTrace:
        blocks = [block([step()], Run(1, 1, n), replica=i) for i, (_, n) in enumerate(counts)]
        replicas = tuple(Replica(worker, 0, "") for worker, _ in counts)
        return traces.changed(traces.keras3((), tuple(blocks), ()), replicas=replicas)

    def changes(before: CallTrace, after: CallTrace) -> list[tuple[str, int | None, int | None]]:
        (found,) = differences(before, after)
        return counts(found, "steps")

    one, other = steps(("worker:0", 3)), steps(("worker:0", 4))
    assert changes(one, other) == [("in all", 3, 4)]
    both = steps(("worker:0", 4), ("worker:1", 4))
    assert changes(one, both) == [
        ("worker:0 replica 0", 3, 4),
        ("worker:1 replica 0", None, 4),
    ]
    assert [each[0] for each in changes(both, one)] == ["worker:0 replica 0", "worker:1 replica 0"]


def of_ranks(*updates: Sequence[Run]) -> CallTrace:
    """Ranks with five steps each, which update the variable in these steps."""
    blocks = []
    for rank, runs in enumerate(updates):
        blocks.append(block([step(), request(0)], FIVE, replica=rank))
        blocks.append(block([update(0)], *runs, replica=rank, is_step=False))
    replicas = tuple(Replica(f"rank:{rank}", 0, "") for rank in range(len(updates)))
    return traces.changed(traces.keras3(("w",), tuple(blocks), ()), replicas=replicas)


ALL_BUT_3 = Run(1, 1, 2), Run(4, 1, 2)


@pytest.mark.parametrize(
    ("before", "after", "updates", "steps"),
    [
        # The other rank misses step 3.
        (
            (ALL_BUT_3, [FIVE]),
            ([FIVE], ALL_BUT_3),
            [
                ("w, rank 0", 4, 5, "0 to 1 in step 3"),
                ("w, rank 1", 5, 4, "1 to 0 in step 3"),
            ],
            [("3, rank 0", 0, 1), ("3, rank 1", 1, 0)],
        ),
        # An update moves from rank 0 to rank 1.
        (
            ([FIVE], []),
            ([], [FIVE]),
            [
                ("w, rank 0", 5, 0, "1 to 0 in steps 1-5"),
                ("w, rank 1", 0, 5, "0 to 1 in steps 1-5"),
            ],
            [("1-5, rank 0", 1, 0), ("1-5, rank 1", 0, 1)],
        ),
        # One rank misses step 3.
        (
            ([FIVE], [FIVE]),
            ([FIVE], ALL_BUT_3),
            [("w, rank 1", 5, 4, "1 to 0 in step 3")],
            [("3, rank 1", 1, 0)],
        ),
        # Three of four do.
        (
            ([FIVE], [FIVE], [FIVE], [FIVE]),
            (ALL_BUT_3, ALL_BUT_3, [FIVE], ALL_BUT_3),
            [("w, each of 3 ranks", 5, 4, "1 to 0 in step 3")],
            [("3, each of 3 ranks", 1, 0)],
        ),
        # All of them do.
        (
            ([FIVE], [FIVE]),
            (ALL_BUT_3, ALL_BUT_3),
            [("w", 10, 8, "2 to 0 in step 3")],
            [("3", 2, 0)],
        ),
    ],
)
def test_ranks_are_compared_one_by_one(
    before: Sequence[Sequence[Run]],
    after: Sequence[Sequence[Run]],
    updates: list[tuple[str, int, int, str]],
    steps: list[tuple[str, int, int]],
) -> None:
    one, other = of_ranks(*before), of_ranks(*after)
    (found,) = differences(one, other)
    assert found and changed(found) == {"updates", "runs", "methods"}
    rows_of = {
        what: [
            (", ".join(filter(None, (e.name, e.replica))), e.before, e.after, e.where)
            for e in found.changes[what]
        ]
        for what in ("updates", "runs")
    }
    assert rows_of["updates"] == updates
    assert [row[:3] for row in rows_of["runs"]] == steps
    text = comparison.render(one, other, [found], width=100)
    assert ("(all ranks)" in text) == (updates[0][0] == "w")
    assert all(f"{name} " in text for name, *_ in updates)


def test_optimizers_of_one_class_are_matched_by_their_variables() -> None:
    gan = traces.two_optimizers()
    data = gan.data
    alike = tuple(replace(each, class_name="keras.Adam") for each in data.optimizers)
    one = traces.changed(gan, optimizers=alike)
    swap = {"optimizers": lambda index: 1 - index}
    other = traces.changed(
        gan,
        optimizers=tuple(with_indices(alike[::-1], swap)),
        blocks=tuple(with_indices(data.blocks, swap)),
        calls=tuple(with_indices(data.calls, swap)),
        graphs=tuple(with_indices(data.graphs, swap)),
    )
    assert not any(differences(one, other))


def test_a_layer_more_leaves_the_others_what_they_are() -> None:
    before = traces.trained(["dense/kernel", "dense_1/kernel"], FIVE)
    after = traces.trained(["dense_4/kernel", "dense_5/kernel", "dense_6/kernel"], FIVE)
    (found,) = differences(before, after)
    assert found.renamed == [("dense", "dense_4"), ("dense_1", "dense_5")]
    assert found.one_sided == ["dense_6/kernel is only in the second trace"]
    assert not found.changes["updates"]


def of_keras_2(names: Sequence[str], *, replicas: int = 1) -> CallTrace:
    """The same training as `traces.trained` has it, by an optimizer of tf_keras legacy."""
    trace = traces.trained(names, FIVE, replicas=replicas)
    (optimizer,) = trace.optimizers
    return traces.changed(
        trace,
        optimizers=(replace(optimizer, kind="legacy", class_name="tf_keras.SGD"),),
        methods=(traces.APPLY_GRADIENTS, traces.DENSE),
    )


LAYERS = ["hidden", "dense", "dense_1", "out"]
OF_KERAS_2 = [f"{layer}/{word}" for layer in LAYERS for word in ("kernel", "bias")]
OF_KERAS_3 = [f"sequential_1/{name}" for name in OF_KERAS_2]


def test_keras_2_against_keras_3() -> None:
    before, after = of_keras_2(OF_KERAS_2), traces.trained(OF_KERAS_3, FIVE)
    for one, other in ((before, after), (after, before)):
        (found,) = differences(one, other)
        assert found.same == ["5 steps", "8 updates a step", "the updates of 8 variables"]
        assert len(found.one_sided) == 1
        assert found.one_sided[0].startswith("the class is ")
        assert not changed(found)
        said = comparison.render(one, other, [found], width=200).splitlines()
        assert said[:2] == [
            "The traces differ.",
            "The same: 5 steps, 8 updates a step, the updates of 8 variables.",
        ]
    assert found.renamed == [(f"sequential_1/{layer}", layer) for layer in LAYERS]


def test_of_an_incomplete_trace_nothing_is_said_to_be_the_same() -> None:
    """What it counts is a lower limit, so that two equal numbers need not be equal counts."""
    whole = traces.trained(OF_KERAS_3, FIVE)
    part = traces.changed(whole, notes=(Note("a step was missed"),))
    for one, other in ((whole, part), (part, whole), (part, part)):
        assert [each.same for each in differences(one, other)] == [[]]


def test_keras_2_against_keras_3_where_they_differ() -> None:
    before = of_keras_2(OF_KERAS_2, replicas=2)
    after = traces.trained([*OF_KERAS_3[:-1], "other/out/kernel"], Run(1, 1, 4), replicas=2)
    (found,) = differences(before, after)
    assert found.same == ["8 updates a step on each replica"]
    assert found.one_sided[1:] == [
        "out/bias is only in the first trace",
        "other/out/kernel is only in the second trace",
    ]
    assert ("apply_gradients: executions", 10, 8) in counts(found, "methods")
    assert not any("update_step" in name for name, *_ in counts(found, "methods"))


def test_ends_of_names_count_between_kinds_of_optimizers_alone() -> None:
    (found,) = differences(
        traces.trained(["dense/kernel"], FIVE), traces.trained(["other/dense/kernel"], FIVE)
    )
    assert len(found.one_sided) == 2


def test_a_layer_of_another_shape_is_said_and_no_difference_in_counts() -> None:
    before = traces.trained(["dense/kernel"], FIVE)
    after = traces.changed(before, variables=(Variable("dense/kernel", (8, 5), "float32"),))
    (found,) = differences(before, after)
    assert not found
    assert found.reshaped == ["dense/kernel is [8, 4] in the first and [8, 5] in the second"]
    assert found.reshaped[0] in comparison.render(before, after, [found])


def test_a_name_that_means_another_layer_in_the_other_trace() -> None:
    before = traces.trained(["a_1/kernel", "a_9/kernel"], FIVE)
    after = traces.trained(["a_2/kernel", "a_3/kernel", "a_9/kernel"], FIVE)
    (found,) = differences(before, after)
    assert found.renamed == [("a_1", "a_2"), ("a_9", "a_3")]
    assert found.one_sided == ["a_9/kernel is only in the second trace"]


@pytest.mark.parametrize(
    ("after", "renamed", "single"),
    [
        (
            {"dense_7": (4, 2), "dense_8": (8, 4), "dense_9": (4, 4)},
            [("dense_1", "dense_7"), ("dense", "dense_8"), ("dense_2", "dense_9")],
            0,
        ),
        ({"dense_8": (8, 4), "dense_9": (4, 2)}, [("dense", "dense_8"), ("dense_1", "dense_9")], 1),
        ({"dense_3": (2, 2)}, [], 4),
    ],
)
def test_layers_are_matched_by_shapes_before_they_are_matched_in_order(
    after: dict[str, tuple[int, ...]], renamed: list[tuple[str, str]], single: int
) -> None:
    before = {"dense": (8, 4), "dense_1": (4, 2), "dense_2": (4, 4)}
    one, other = (
        traces.changed(
            traces.trained([f"{layer}/kernel" for layer in shapes], FIVE),
            variables=tuple(Variable(f"{n}/kernel", shapes[n], "float32") for n in shapes),
        )
        for shapes in (before, after)
    )
    (found,) = differences(one, other)
    assert sorted(found.renamed) == sorted(renamed)
    assert len(found.one_sided) == single


def test_how_runs_were_recorded_makes_no_difference() -> None:
    parts = Run(4, 4, 2), Run(12, 8, 2), Run(16, 8, 2)
    one, other = traces.trained(["a"], Run(4, 4, 6)), traces.trained(["a"], *parts)
    assert not any(differences(one, other))


def test_an_optimizer_more_leaves_the_other_what_it_is() -> None:
    gan = traces.two_optimizers()
    generator, discriminator = differences(_only_generator(gan), gan)
    assert not generator
    assert discriminator.title == gan.optimizers[1].name
    assert discriminator.one_sided == [
        f"the optimizer {gan.optimizers[1].class_name} is only in the second trace"
    ]


def _only_generator(gan: CallTrace) -> CallTrace:
    return traces.changed(
        gan,
        optimizers=gan.optimizers[:1],
        variables=gan.variables[:2],
        blocks=gan.blocks[:1],
        calls=gan.data.calls[:1],
    )


@pytest.mark.parametrize("swapped", [False, True])
def test_optimizers_of_one_short_name_are_matched_by_class_first(swapped: bool) -> None:
    gan = traces.two_optimizers()
    kinds = ["keras.Adam", "tf_keras.Adam"]
    one, other = (
        traces.changed(
            gan,
            optimizers=tuple(
                replace(each, class_name=name)
                for each, name in zip(gan.optimizers, names, strict=True)
            ),
        )
        for names in (kinds, kinds[:: -1 if swapped else 1])
    )
    assert [each.one_sided == [] for each in differences(one, other)] == [not swapped, not swapped]


@pytest.mark.parametrize("name", traces.ALL)
def test_a_trace_is_as_itself(name: str) -> None:
    trace = traces.ALL[name]()
    assert not any(differences(trace, traces.ALL[name]()))
    assert trace.executions() == 0 or any(differences(traces.nothing(), trace))


# Which lines lead to updates.


def renumbered(trace: CallTrace, **numbers: int) -> CallTrace:
    """The trace of a program in which functions have moved to other lines."""
    lines = tuple(
        replace(each, number=each.number + numbers.get(each.function, 0))
        for each in trace.data.lines
    )
    return traces.changed(trace, lines=lines)


def test_lines_that_an_edit_moved_lead_to_the_same() -> None:
    trace = traces.several_callers()
    (difference,) = differences(trace, renumbered(trace, main=2, warm_up=-1))
    assert not difference and not difference.changes["callers"]
    assert sorted(difference.shifted) == [
        ("steps/warm.py:12 warm_up", "steps/warm.py:11 warm_up"),
        ("train.py:41 main", "train.py:43 main"),
        ("train.py:44 main", "train.py:46 main"),
    ]


def test_updates_that_come_from_another_line() -> None:
    """20 steps of 11 variables on 2 replicas are those of the first `fit` instead of the second."""
    trace = traces.several_callers()
    moved = tuple(replace(each, path=0) if each.path == 1 else each for each in trace.blocks)
    (difference,) = differences(trace, traces.changed(trace, blocks=moved))
    assert not difference and not difference.shifted
    rows = [(name.split(" > ")[1], *both) for name, *both in counts(difference, "callers")]
    assert rows == [("train.py:41 main", 880, 1320), ("train.py:44 main", 440, None)]


def test_a_strategy_that_one_trace_has_alone_is_named_beside_a_dash() -> None:
    one = traces.changed(traces.eager(), environment={"strategy": "MirroredStrategy"})
    other = traces.changed(traces.eager(), environment={"strategy": ""})
    assert "surroundings: strategy MirroredStrategy and -." in comparison.render(one, other, [])


def called_from(**updates: int) -> CallTrace:
    """The trace of a function whose lines, as `line_10`, lead to so many updates each."""
    names = [int(name.removeprefix("line_")) for name in updates]
    firsts = [1 + sum([*updates.values()][:at]) for at in range(len(updates))]
    blocks = [
        replace(block([step(), update(0)], Run(first, 1, number)), path=at)
        for at, (first, number) in enumerate(zip(firsts, updates.values(), strict=True))
    ]
    return traces.changed(
        traces.keras3(("kernel",), tuple(blocks), ()),
        lines=tuple(Line("main", "train.py", number) for number in names),
        paths=tuple((at,) for at in range(len(names))),
    )


@pytest.mark.parametrize(
    ("before", "after", "changed", "shifted"),
    [
        ({"line_10": 10}, {"line_5": 2, "line_10": 8}, [(5, None, 2), (10, 10, 8)], []),
        ({"line_10": 8, "line_20": 2}, {"line_20": 10}, [(10, 8, None), (20, 2, 10)], []),
        ({"line_10": 8}, {"line_5": 2, "line_10": 8}, [(5, None, 2)], []),
        ({"line_10": 8, "line_20": 8}, {"line_20": 8, "line_30": 8}, [], [(10, 20), (20, 30)]),
        ({"line_10": 8, "line_20": 2}, {"line_12": 8, "line_20": 2}, [], [(10, 12)]),
        ({"line_10": 8, "line_20": 2}, {"line_20": 2, "line_30": 8}, [], [(10, 30)]),
        ({"line_10": 8, "line_20": 2}, {"line_12": 8, "line_22": 3}, [(22, 2, 3)], [(10, 12)]),
    ],
)
def test_only_the_lines_that_lead_to_others_are_named(
    before: dict[str, int],
    after: dict[str, int],
    changed: list[tuple[int, int | None, int | None]],
    shifted: list[tuple[int, int]],
) -> None:
    (difference,) = differences(called_from(**before), called_from(**after))
    rows = [(each.name, each.before, each.after) for each in difference.changes["callers"]]
    assert sorted(rows) == sorted((f"train.py:{line} main", *both) for line, *both in changed)
    assert difference.shifted == [
        (f"train.py:{one} main", f"train.py:{other} main") for one, other in shifted
    ]


def test_updates_of_which_the_caller_is_not_known_any_more() -> None:
    trace = traces.several_callers()
    unknown = tuple(replace(each, path=None) if each.path == 2 else each for each in trace.blocks)
    (difference,) = differences(trace, traces.changed(trace, blocks=unknown))
    rows = counts(difference, "callers")
    assert sorted(rows) == [
        ("caller not known", None, 66),
        ("train.py:50 > steps/warm.py:12 warm_up", 66, None),
    ]


def test_a_trace_that_knows_no_callers_is_not_compared_by_them() -> None:
    trace = traces.several_callers()
    older = tuple(replace(each, path=None) for each in trace.blocks)
    older_trace = traces.changed(trace, blocks=older, lines=(), paths=(), graph_tracings=())
    for pair in ((trace, older_trace), (older_trace, trace), (trace, trace)):
        (difference,) = differences(*pair)
        assert not (difference or difference.changes["callers"] or difference.shifted)


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ((RateRun(1, 10, 0.01, 0.01),), "Learning rate 0.01."),
        ((RateRun(1, 10, 0.1, 0.01, 7),), "Learning rate 0.1 -> 0.01 (at least 7 values)."),
    ],
)
def test_rates_that_differ_are_said_and_are_no_difference_in_counts(
    runs: tuple[RateRun, ...], said: str
) -> None:
    rate = Rate(0, "rate", 0, (0, 1), (RateRun(1, 10, 0.1, 0.1),))
    one, other, again = (
        traces.changed(traces.eager(), rates=(each,))
        for each in (rate, replace(rate, runs=runs, sampled=True), replace(rate, sampled=True))
    )
    (found,) = differences(one, other)
    assert not found
    assert found.rates == ("Learning rate 0.1.", said)
    text = comparison.render(one, other, [found])
    assert f"First: Learning rate 0.1.\nSecond: {said}\n" in text
    assert differences(one, again)[0].rates == ("", "")
    assert differences(one, traces.eager())[0].rates == ("", "")


def test_how_often_a_rate_was_read_is_no_difference() -> None:
    one, other = (
        traces.changed(traces.eager(), rates=(Rate(0, "rate", 0, (0, 1), (run,), True),))
        for run in (RateRun(1, 10, 0.1, 0.01, 5), RateRun(1, 10, 0.1, 0.01, 6))
    )
    assert differences(one, other)[0].rates == ("", "")
