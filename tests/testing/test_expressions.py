"""Expectations as text, for `tracer check`: they fail as the assertions do, with the same words."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from support import traces

import tracer
from tracer.check import verdicts
from tracer.check.verdicts import BadExpectation, read
from tracer.errors import UnknownName
from tracer.model.timeline import Run
from tracer.model.trace import Trace
from tracer.testing.assertions import Check, expect_updates


def reasons(trace: Trace, *texts: str) -> list[str]:
    """The first line of why each expression does not hold; empty if it does."""
    found = verdicts.check(trace, [read(text) for text in texts])
    return [verdict.reason.partition("\n")[0] for verdict in found]


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("unchanged=0", "expected 0, got 5: 1 in 5 of 10 steps (4-6, 9-10)"),
        ("unchanged[*bias]<=1", "expected at most 1, got 2: 1 in 2 of 10 steps (9-10)"),
        ("not_finite=0", "expected 0, got 3: 1 in 3 of 10 steps (8-10)"),
        ("unchanged=0/step", "expected 0 in each step, got 1 in 5 of 10 steps (4-6, 9-10)"),
        ("not_finite[*bias]<1/step", "at most 0 in each step, got 1 in 3 of 10 steps (8-10)"),
        ("unchanged[*kernel]>=4", "expected at least 4, got 3: 1 in 3 of 10 steps (4-6)"),
    ],
)
def test_what_steps_did_to_the_weights(text: str, got: str) -> None:
    (reason,) = reasons(traces.with_effects(), text)
    assert reason.endswith(got)


def test_what_steps_did_not_do_to_the_weights() -> None:
    texts = ("not_finite[*kernel]=0", "unchanged=5", "unchanged[*kernel]<=1/step", "unchanged>4")
    found = verdicts.check(traces.with_effects(), [read(each) for each in texts])
    assert [verdict.reason for verdict in found] == [""] * 4
    with pytest.raises(UnknownName, match="the trace has no effects"):
        verdicts.check(traces.eager(), [read("unchanged=0")])
    with pytest.raises(UnknownName, match="no variable"):
        verdicts.check(traces.with_effects(), [read("unchanged[kernel]=0")])


@pytest.mark.parametrize(
    ("text", "expected", "make"),
    [
        ("dense=2/step", expect_updates(dense=2, per_step=True), traces.loss_scaled),
        ("dense=4/step", expect_updates(dense=4, per_step=True), traces.accumulation),
        ("updates>20", expect_updates(at_least=21), traces.eager),
        ("dense=2", expect_updates(dense=2), traces.never_ran),
        ("update_step=65", tracer.assert_executions("update_step", 65).check, traces.accumulation),
        (
            "_resource_apply_dense=64",
            tracer.assert_executions("_resource_apply_dense", 64).check,
            traces.eager,
        ),
        (
            "updates[dense/*]=3/step",
            expect_updates(total=3, per_step=True, variable="dense/*"),
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
    text: str, expected: Check, make: Callable[[], Trace]
) -> None:
    (verdict,) = verdicts.check(make(), [read(text)])
    assert verdict.reason == expected(make()) != ""


@pytest.mark.parametrize(
    ("relation", "holding"),
    [("=", {20}), ("==", {20}), ("<=", {20, 21}), (">=", {19, 20}), ("<", {21}), (">", {19})],
)
def test_relations_are_exact(relation: str, holding: set[int]) -> None:
    numbers = (19, 20, 21)
    found = reasons(traces.eager(), *(f"updates{relation}{number}" for number in numbers))
    assert {number for number, reason in zip(numbers, found, strict=True) if not reason} == holding


def test_the_text_on_a_total_says_what_each_step_did() -> None:
    (reason,) = reasons(traces.eager(), "dense=2")
    assert reason == "dense updates: expected 2, got 20: 2 in each of 10 steps"
    assert reasons(traces.eager(), "steps=1") == ["steps: expected 1, got 10"]


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
    with pytest.raises(BadExpectation, match="runs once for all variables; write upd"):
        reasons(traces.eager(), f"{method}[dense/kernel]=0")
    with pytest.raises(BadExpectation, match="runs once for all variables"):
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


def test_effects_of_one_optimizer_are_no_proof_of_another() -> None:
    trace = traces.two_optimizers()
    compared = traces.effect("compared", (0, 1), *trace.blocks[0].runs)
    trace = traces.changed(trace, effects=(compared,))
    why = "expected 0, but nothing was compared in some steps"
    assert reasons(trace, "not_finite=0") == [f"not finite: {why}"]
    assert reasons(trace, "unchanged[dis*]=0") == [f"unchanged of dis*: {why}"]
    assert reasons(trace, "not_finite[gen*]=0") == [""]
    late = replace(compared, total=9, runs=(Run(2, 1, 9),))
    trace = traces.changed(trace, effects=(late,))
    why = "expected 0, but nothing was compared in some steps"
    assert reasons(trace, "not_finite[gen*]=0") == [f"not finite of gen*: {why}"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("steps=1/step", "takes no /step"),
        ("rate<=0.1", "a count is a whole number, not 0.1"),
        ("dense=0.5", "a count is a whole number, not 0.5"),
        ("dense=1e3", "a count is a whole number, not 1e3"),
    ],
)
def test_numbers_that_cannot_be_read(text: str, said: str) -> None:
    with pytest.raises(BadExpectation, match=said):
        read(text)
