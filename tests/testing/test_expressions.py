"""Expectations as text, for `tracer check`: they fail as the assertions do, with the same words."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from support import traces

import tracer
from tracer.api import CallTrace
from tracer.errors import UnknownName
from tracer.model.merge import merge
from tracer.model.rates import sentence
from tracer.model.records import Effect, Rate, RateRun
from tracer.model.runs import Run
from tracer.model.summary import summaries_of
from tracer.model.trace import Trace
from tracer.testing import expressions
from tracer.testing.assertions import Check, expect_updates


def reasons(trace: Trace, *texts: str) -> list[str]:
    """The first line of why each expression does not hold; empty if it does."""
    verdicts = expressions.check(trace, [expressions.read(text) for text in texts])
    return [verdict.reason.partition("\n")[0] for verdict in verdicts]


@pytest.mark.parametrize(
    ("text", "said", "rows"),
    [
        (
            "unchanged=0",
            "unchanged: expected 0, got 5",
            ["dense/kernel 4-6 1 3", "dense/bias 9-10 1 2"],
        ),
        (
            "unchanged[*bias]<=1",
            "unchanged of *bias: expected at most 1, got 2",
            ["dense/bias 9-10 1 2"],
        ),
        ("not_finite=0", "not finite: expected 0, got 3", ["dense/bias 8-10 1 3"]),
        (
            "unchanged=0/step",
            "unchanged: expected 0 in each step, got 1 in 5 of 10 steps",
            ["dense/kernel 4-6 1", "dense/bias 9-10 1"],
        ),
        (
            "not_finite[*bias]<1/step",
            "not finite of *bias: expected at most 0 in each step, got 1 in 3 of 10 steps",
            ["dense/bias 8-10 1"],
        ),
        (
            "unchanged[*kernel]>=4",
            "unchanged of *kernel: expected at least 4, got 3",
            ["dense/kernel 1-3, 7-10 0 0", "dense/kernel 4-6 1 3"],
        ),
    ],
)
def test_what_steps_did_to_the_weights(text: str, said: str, rows: list[str]) -> None:
    """The rows have the steps of a variable, the count of one of them, and that of all of them."""
    (verdict,) = expressions.check(traces.with_effects(), [expressions.read(text)])
    head, _, _, *table = verdict.reason.partition("\nLikely")[0].strip().splitlines()
    assert head == said
    assert [" ".join(row.split()) for row in table] == rows


def test_what_steps_did_not_do_to_the_weights() -> None:
    texts = ("not_finite[*kernel]=0", "unchanged=5", "unchanged[*kernel]<=1/step", "unchanged>4")
    verdicts = expressions.check(traces.with_effects(), [expressions.read(each) for each in texts])
    assert [verdict.reason for verdict in verdicts] == [""] * 4
    with pytest.raises(UnknownName, match="the trace has no effects"):
        expressions.check(traces.eager(), [expressions.read("unchanged=0")])
    with pytest.raises(UnknownName, match="no variable"):
        expressions.check(traces.with_effects(), [expressions.read("unchanged[kernel]=0")])


@pytest.mark.parametrize(
    ("text", "expected", "make"),
    [
        ("dense=2/step", expect_updates(dense=2, per_step=True), traces.loss_scaled),
        ("dense=2/step", expect_updates(dense=2, per_step=True), traces.ineffective),
        ("dense=4/step", expect_updates(dense=4, per_step=True), traces.accumulation),
        ("dense=60", expect_updates(dense=60), traces.no_gradients),
        ("updates>20", expect_updates(at_least=21), traces.eager),
        ("updates<20", expect_updates(at_most=19), traces.eager),
        ("dense=2/step", expect_updates(dense=2, per_step=True), traces.applied_twice),
        ("dense=2", expect_updates(dense=2), traces.never_ran),
        ("dense=1/step", expect_updates(dense=1, per_step=True), traces.direct_calls),
        ("update_step=65", tracer.assert_executions("update_step", 65).check, traces.accumulation),
        (
            "_resource_apply_dense=64",
            tracer.assert_executions("_resource_apply_dense", 64).check,
            traces.eager,
        ),
        (
            "updates[dense/*]=3/step",
            expect_updates(total=3, per_step=True, per_replica=True, variable="dense/*"),
            traces.uneven_replicas,
        ),
        (
            "updates[*/kernel]=2/step",
            expect_updates(total=2, per_step=True, variable="*/kernel"),
            traces.two_optimizers,
        ),
    ],
)
def test_an_expression_fails_as_the_assertion_does(
    text: str, expected: Check, make: Callable[[], CallTrace]
) -> None:
    """But for the hints, which name what else could be written."""
    (verdict,) = expressions.check(make(), [expressions.read(text)])
    said, _, causes = verdict.reason.partition("Likely cause")
    assert said == expected(make()).partition("Likely cause")[0] != ""
    assert "per_step=" not in causes and "tracer.assert_" not in causes


@pytest.mark.parametrize(
    ("relation", "holding"),
    [("=", {20}), ("==", {20}), ("<=", {20, 21}), (">=", {19, 20}), ("<", {21}), (">", {19})],
)
def test_relations_are_exact(relation: str, holding: set[int]) -> None:
    numbers = (19, 20, 21)
    found = reasons(traces.eager(), *(f"updates{relation}{number}" for number in numbers))
    assert {number for number, reason in zip(numbers, found, strict=True) if not reason} == holding


def test_expressions_hint_at_expressions() -> None:
    (verdict,) = expressions.check(traces.eager(), [expressions.read("dense=2")])
    assert "did you mean 2/step?" in verdict.reason
    trace = traces.changed(
        traces.uneven_replicas(),
        blocks=traces.uneven_replicas().blocks[:2],
        replicas=traces.uneven_replicas().replicas[:2],
        calls=(),
    )
    (verdict,) = expressions.check(trace, [expressions.read("dense=2")])
    assert "2 in each of 10 steps on each of 2 replicas: did you" in verdict.reason
    (verdict,) = expressions.check(traces.accumulation(), [expressions.read("updates=8")])
    assert "tracer check" in verdict.reason and "assert_calls" not in verdict.reason


def test_a_method_that_was_never_called_ran_0_times() -> None:
    assert reasons(traces.eager(), "_resource_apply_dense=0", "_resource_apply_dense=0/step") == [
        "",
        "",
    ]
    with pytest.raises(tracer.UnknownName, match=r"no count 'update_stepp': .*update_step"):
        reasons(traces.eager(), "update_stepp=0")
    for wrong, meant in (("update_stp", "update_step"), ("udpates", "updates")):
        with pytest.raises(tracer.UnknownName, match=f"'{wrong}': did you mean `{meant}`"):
            reasons(traces.eager(), f"{wrong}=240")
    with pytest.raises(tracer.UnknownName, match=r"no variable 'dense/kernle': .*dense/kernel"):
        reasons(traces.eager(), "updates[dense/kernle]=0")


def test_a_step_method_has_no_variable() -> None:
    """It would be counted 0 times for each, so that a misspelt gate held."""
    (method,) = {m.name for m in traces.eager().methods} & {"apply_gradients", "apply"}
    with pytest.raises(expressions.BadExpectation, match="runs once for all variables; write upd"):
        reasons(traces.eager(), f"{method}[dense/kernel]=0")
    with pytest.raises(expressions.BadExpectation, match="runs once for all variables"):
        reasons(traces.eager(), "step[dense/kernel]=0")  # it never ran
    for assertion in (tracer.assert_executions, tracer.assert_calls):
        text = assertion(method, 0, variable="dense/kernel").check(traces.eager())
        assert text.endswith(f"but {method} runs once for all variables: use assert_updates")


def test_an_incomplete_trace_is_a_verdict_of_its_own() -> None:
    assert reasons(traces.incomplete(), "update_step=200", "update_step=201")[:2] == [
        "",
        "executions of update_step: expected 201, got 200",
    ]
    assert len(reasons(traces.incomplete(), "update_step=200")) == 2


# Learning rates.

FLOAT32 = 0.10000000149011612  # 0.1 in 32 bits
CONSTANT = Rate(0, "rate", 0, (0, 1), (RateRun(1, 10, FLOAT32, FLOAT32),))
ZERO = replace(CONSTANT, runs=(RateRun(1, 10, 0.0, 0.0),))
MOVES = Rate(0, "rate", 0, (0,), (RateRun(1, 4, 0.1, 0.1), RateRun(5, 6, 0.05, 0.01, 6)))
PEAK = Rate(0, "rate", 1, (1,), (RateRun(1, 9, 1.0, 1.0), RateRun(10, 1, 2.0, 2.0)))
SCHEDULE = Rate(0, "rate", 0, (0, 1), (), schedule="CosineDecay(decay_steps=10)")


@pytest.mark.parametrize(
    ("known", "text", "reason"),
    [
        ([CONSTANT], "rate=0.1", ""),
        ([CONSTANT], "rate = 1e-1", ""),
        ([CONSTANT], "rate<=.1", ""),
        ([CONSTANT], "rate>=0.1", ""),
        ([CONSTANT], "rate<0.1", "it is 0.1 in steps 1-10"),
        ([CONSTANT], "rate>0.1", "it is 0.1 in steps 1-10"),
        ([CONSTANT], "rate=0.1001", "it is 0.1 in steps 1-10"),
        ([CONSTANT], "rate[dense/bias]=0.1", ""),
        ([ZERO], "rate>0", "it is 0 in steps 1-10"),
        ([ZERO], "rate<0", "it is 0 in steps 1-10"),
        ([ZERO], "rate=0", ""),
        ([MOVES], "rate<=0.1", ""),
        ([MOVES], "rate>0.01", "it is 0.05 to 0.01 in steps 5-10"),
        ([MOVES], "rate=0.1", "it is 0.05 to 0.01 in steps 5-10"),
        ([MOVES, PEAK], "rate[*kernel]<=0.1", ""),
        ([MOVES, PEAK], "rate[*bias]<=1", "it is 2 in step 10"),
        ([MOVES, PEAK], "rate<=0.01", "it is 0.1 in steps 1-4 and 0.05 to 0.01 in steps 5-10"),
        ([SCHEDULE], "rate<=1", f"it is set by {SCHEDULE.schedule}, whose values are not known"),
        ([], "rate<=1", "it is not known"),
        ([replace(CONSTANT, runs=CONSTANT.runs[:0])], "rate<=1", "it is not known in all steps"),
        ([replace(CONSTANT, runs=(RateRun(1, 9, 0.1, 0.1),), sampled=True)], "rate<=1", ""),
        (
            [replace(CONSTANT, runs=(RateRun(1, 9, 0.1, 0.1),))],
            "rate<=1",
            "it is not known in all steps",
        ),
        ([replace(CONSTANT, runs=(), sampled=True)], "rate<=1", "it is not known in all steps"),
        (
            [
                replace(
                    CONSTANT, runs=(RateRun(1, 2, 0.1, 0.1), RateRun(5, 6, 0.1, 0.1)), sampled=True
                )
            ],
            "rate<=1",
            "it is not known in all steps",
        ),
        ([Rate(0, "decay", 0, (0, 1), CONSTANT.runs)], "rate<=1", "it is not known"),
    ],
)
def test_rates_hold_in_each_step(known: list[Rate], text: str, reason: str) -> None:
    trace = traces.changed(traces.eager(), rates=tuple(known))
    assert trace.steps == 10
    assert reasons(trace, text) == [reason]


def test_the_rate_of_a_group_that_comes_later_is_known_of_its_updates() -> None:
    trace = traces.trained(["kernel", "bias"], Run(1, 1, 10))
    (work,) = trace.blocks
    first = tuple(replace(each, variables=each.variables[:1]) for each in work.entries)
    early = replace(work, entries=first, total=3, runs=(Run(1, 1, 3),))
    late = replace(work, total=7, runs=(Run(4, 1, 7),))
    rates = (
        Rate(0, "rate", 0, (0,), (RateRun(1, 10, 0.1, 0.1),)),
        Rate(0, "rate", 1, (1,), (RateRun(4, 7, 0.5, 0.5),)),
    )
    trace = traces.changed(trace, rates=rates)
    assert reasons(trace, "rate<=0.5") == ["it is not known in all steps"]
    trace = traces.changed(trace, blocks=(early, late))
    assert reasons(trace, "rate<=0.5", "rate[bias]=0.5") == ["", ""]


def test_a_rate_in_each_step_of_no_steps_is_no_proof() -> None:
    assert reasons(traces.nothing(), "rate<=1") == ["no step ran"]


def test_effects_of_one_optimizer_are_no_proof_of_another() -> None:
    trace = traces.two_optimizers()
    compared = Effect(0, 0, "compared", (0, 1), 10, trace.blocks[0].runs)
    trace = traces.changed(trace, effects=(compared,))
    why = "expected 0, but nothing was compared in some steps of adam#2"
    assert reasons(trace, "not_finite=0") == [f"not finite: {why}"]
    assert reasons(trace, "unchanged[dis*]=0") == [f"unchanged of dis*: {why}"]
    assert reasons(trace, "not_finite[gen*]=0") == [""]
    late = replace(compared, total=9, runs=(Run(2, 1, 9),))
    trace = traces.changed(trace, effects=(late,))
    why = "expected 0, but nothing was compared in some steps of adam"
    assert reasons(trace, "not_finite[gen*]=0") == [f"not finite of gen*: {why}"]


def test_a_rate_that_jumped_more_often_than_is_kept_is_not_known() -> None:
    """Between the ends of its last run it may have had any value."""
    runs = tuple(RateRun(number, 1, 0.1 + number % 2, 0.1) for number in range(1, 52))
    trace = traces.changed(traces.accumulation(), rates=(replace(CONSTANT, runs=runs),))
    last = RateRun(52, trace.steps - 51, 0.1, 0.1, 9)
    trace = traces.changed(trace, rates=(replace(CONSTANT, runs=(*runs, last)),))
    assert reasons(trace, "rate<=2") == ["it is not known in all steps"]


def test_the_rate_of_each_optimizer_counts_and_names_it() -> None:
    trace = traces.two_optimizers()
    names = [each.name for each in trace.data.optimizers]
    steps = trace.steps
    known = tuple(
        Rate(root, "rate", 0, (), (RateRun(1, steps, value, value),))
        for root, value in enumerate((0.1, 0.2))
    )
    trace = traces.changed(trace, rates=known)
    assert reasons(trace, "rate=0.1") == [f"{names[1]}: it is 0.2 in steps 1-{steps}"]


def test_the_rate_of_each_rank_counts() -> None:
    worker = traces.eager().replicas[0]
    ranks = [
        traces.changed(
            traces.eager(),
            rates=(replace(CONSTANT, runs=(RateRun(1, 10, value, value),)),),
            replicas=(replace(worker, worker=f"rank:{number}"),),
        )
        for number, value in enumerate((0.1, 5.0, 0.1))
    ]
    trace = merge(ranks)
    assert reasons(trace, "rate<=0.1") == ["it is 5 in steps 1-10"]
    assert sentence(summaries_of(trace)[0], brief=False) == "Learning rate 0.1."
    assert reasons(merge([ranks[0], ranks[2]]), "rate<=0.1") == [""]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rate=0.1/step", "takes no /step"),
        ("rate=0,1", "0,1 is no number"),
        ("rate<=1e400", "1e400 is no rate"),
        ("dense=0.5", "a count is a whole number, not 0.5"),
        ("dense=1e3", "a count is a whole number, not 1e3"),
    ],
)
def test_numbers_that_cannot_be_read(text: str, said: str) -> None:
    with pytest.raises(expressions.BadExpectation, match=said):
        expressions.read(text)


def test_a_rate_in_the_project_is_a_number_or_a_text() -> None:
    for value in (0.1, "<= 0.1", 1e-05):
        assert expressions.read(expressions.joined("rate", value)).what == "rate"
