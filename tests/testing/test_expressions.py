"""Expectations as text, for `tracer check`: they fail as the assertions do, with the same words."""

from collections.abc import Callable

import pytest
from support import traces

import tracer
from tracer.check import read, verdicts
from tracer.errors import Mistake
from tracer.model.trace import Trace
from tracer.testing import Check, expect_updates


def reasons(trace: Trace, *texts: str) -> list[str]:
    """The first line of why each expression does not hold; empty if it does."""
    found = verdicts(trace, [read(text) for text in texts])
    return [verdict.reason.partition("\n")[0] for verdict in found]


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
    (verdict,) = verdicts(make(), [read(text)])
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


def test_the_head_says_of_which_of_several_optimizers_the_counts_are() -> None:
    texts = ("dense[*bias]=2", "dense=2", "dense=1/step", "dense=2/step")
    assert reasons(traces.two_optimizers(), *texts) == [
        "dense updates of *bias: expected 2, got 10: 1 in each of 10 steps with adam",
        "dense updates: expected 2, got 50",
        "dense updates: expected 1 in each step, got 2 in each of 10 steps with adam",
        "dense updates: expected 2 in each step, got 1 in each of 30 steps with adam#2",
    ]
    (reason,) = reasons(traces.two_optimizers(), "updates[*/kernel]=2/step")
    assert reason.endswith("in each of 10 steps with adam; got 1 in each of 30 steps with adam#2")


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


def test_a_variable_that_the_trace_lacks_fails_each_expectation() -> None:
    """It may be misspelled, or a variable that no optimizer gets."""
    for text in ("updates[dense/kernle]=0", "updates[dense/kernle]>=1/variable"):
        wrong, right = reasons(traces.eager(), text, "steps=10")
        assert wrong.endswith("but the trace holds no variable 'dense/kernle'")
        assert not right


def test_each_variable_is_held_to_its_own_count() -> None:
    (verdict,) = verdicts(traces.no_gradients(), [read("updates>=1/variable")])
    first, _, _, *rows = verdict.reason.splitlines()
    assert first == ("updates: expected at least 1 for each variable, got 0 for 1 of 3 variables")
    assert [row.split("/")[0] for row in rows if "/kernel  " in row] == ["unused"]
    assert reasons(traces.eager(), "updates=10/variable", "updates[dense/*]<=9/variable") == [
        "",
        "updates of dense/*: expected at most 9 for each variable, got 10 for 2 of 2 variables",
    ]
    assert reasons(traces.no_steps(), "updates=0/variable") == [
        "updates: expected 0 for each variable, but there is no variable"
    ]
    with pytest.raises(Mistake, match="runs once for all variables"):
        reasons(traces.eager(), "apply_gradients>=1/variable")


def test_a_step_method_has_no_variable() -> None:
    """It would be counted 0 times for each, so that a misspelt gate held."""
    (method,) = {m.name for m in traces.eager().methods} & {"apply_gradients", "apply"}
    with pytest.raises(Mistake, match="runs once for all variables; write upd"):
        reasons(traces.eager(), f"{method}[dense/kernel]=0")
    for wrong in ("step", "update"):  # of torch.optim and of optax
        with pytest.raises(tracer.UnknownName, match=f"did you mean `{wrong}s`"):
            reasons(traces.eager(), f"{wrong}=0")
    for assertion in (tracer.assert_executions, tracer.assert_calls):
        text = assertion(method, 0, variable="dense/kernel").check(traces.eager())
        assert text.endswith(f"but {method} runs once for all variables: use assert_updates")


def test_an_incomplete_trace_is_a_verdict_of_its_own() -> None:
    assert reasons(traces.incomplete(), "update_step=200", "update_step=201")[:2] == [
        "",
        "executions of update_step: expected 201, got 200",
    ]
    assert len(reasons(traces.incomplete(), "update_step=200")) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("steps=1/step", "takes no /step"),
        ("steps[a]=1", "takes no variable"),
        ("calls=1/variable", "takes no /variable"),
        ("dense=0.5", "'dense=0.5' is no expectation: write it as"),
        ("dense=1e3", "'dense=1e3' is no expectation: write it as"),
    ],
)
def test_numbers_that_cannot_be_read(text: str, said: str) -> None:
    with pytest.raises(Mistake, match=said):
        read(text)
