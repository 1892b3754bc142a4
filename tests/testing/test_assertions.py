"""The assertions on traces made by hand: what holds, and the exact text of what does not."""

import warnings
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from support import traces
from support.cost import at_most
from support.golden import assert_golden
from support.traces import block, called, request, step, update

import tracer
from tracer.check import read, verdicts
from tracer.model.records import Graph, Note
from tracer.model.timeline import Run
from tracer.model.trace import Trace
from tracer.testing import Assertion, Check, expect_updates


def executions(method: str, count: int, **options: bool) -> Check:
    return tracer.assert_executions(method, count, **options).check


def calls(method: str, count: int) -> Check:
    return tracer.assert_calls(method, count).check


class Named:
    """A variable as frameworks name one."""

    dtype = "float32"

    def __init__(self, name: str) -> None:
        self.name = f"{name}:0"


def of_variables(
    assertion: Callable[[list[Named]], Assertion], *names: str
) -> Callable[[Trace], str]:
    """The check of variables that the trace knows in this order, but for the last one."""

    def check(trace: Trace) -> str:
        variables = list(map(Named, names))
        known = {id(each): index for index, each in enumerate(variables[:-1])}
        known = {key: index for key, index in known.items() if index < len(trace.variables)}
        live = Trace(trace.data, lambda variable: known.get(id(variable)))
        return assertion(variables).check(live)

    return check


all_updated = of_variables(
    tracer.assert_all_updated,
    *("shared/kernel", "branch/kernel", "unused/kernel", "forgotten/kernel"),
)


def test_each_replica_is_judged_by_what_it_did() -> None:
    """One made no steps, and the other nothing outside of its steps."""
    blocks = (
        block([step(), request(0), update(0)], Run(1, 1, 3)),
        block([update(0)], is_step=False, total=2, outside=True, replica=1),
    )
    trace = traces.keras3(("a",), blocks, (called(1, (0,), eager=5),))
    trace = traces.changed(trace, replicas=traces.replicas(2))
    head, *_ = expect_updates(dense=1, per_step=True)(trace).splitlines()
    assert head == "dense updates: expected 1 in each step, but no step ran"


def unused(name: str) -> Trace:
    """What an assertion knows of an optimizer that it was given, and that was not used."""
    (optimizer,) = traces.eager().optimizers
    optimizer = replace(optimizer, name=name)
    return traces.changed(traces.nothing(), optimizers=(optimizer,))


def test_a_step_on_many_replicas_is_judged_in_no_time() -> None:
    trace = traces.trained(("a",), Run(1, 1, 6), replicas=1_500)
    with at_most(3_000_000):
        assert "got 1 in each of 6 steps" in expect_updates(dense=2, per_step=True)(trace)


LATE = {"notes": (Note("adam: 1 call of 'step', traced before, is not counted"),)}


FAILURES: dict[str, tuple[Check, Callable[[], Trace]]] = {
    "one_step_skipped": (expect_updates(dense=2, per_step=True), traces.loss_scaled),
    "accumulating": (expect_updates(dense=4, per_step=True), traces.accumulation),
    "no_gradient": (expect_updates(dense=2, sparse=0, per_step=True), traces.gradient_from_step_5),
    "no_gradient_in_all": (expect_updates(dense=60), traces.no_gradients),
    "both_kinds": (
        expect_updates(dense=4, sparse=0, per_step=True),
        traces.embedding_on_two_replicas,
    ),
    "of_all_replicas": (expect_updates(dense=4), traces.embedding_on_two_replicas),
    "uneven_workers": (expect_updates(dense=2, per_step=True), traces.uneven_replicas),
    "meant_per_step": (expect_updates(dense=2), traces.eager),
    "what_a_mock_counts": (expect_updates(total=8), traces.accumulation),
    "between_limits": (expect_updates(at_least=3, at_most=4, per_step=True), traces.eager),
    "twice": (expect_updates(dense=2, per_step=True), traces.applied_twice),
    "never_ran": (expect_updates(dense=2, per_step=True), traces.never_ran),
    "nothing": (expect_updates(total=1), traces.nothing),
    "outside_any_step": (expect_updates(dense=1, per_step=True), traces.direct_calls),
    "two_optimizers": (expect_updates(dense=2, per_step=True), traces.two_optimizers),
    "many_variables": (expect_updates(dense=200, per_step=True), traces.many_variables),
    "unknown_variable": (expect_updates(dense=0, variable="embeding"), traces.eager),
    "incomplete": (expect_updates(dense=2, per_step=True), traces.incomplete),
    "incomplete_but_as_expected": (expect_updates(dense=200), traces.incomplete),
    "executions": (executions("update_step", 65), traces.accumulation),
    "executions_of_steps": (executions("apply_gradients", 2, per_step=True), traces.eager),
    "calls_for_executions": (calls("update_step", 64), traces.accumulation),
    "calls_of_another_method": (calls("_resource_apply_dense", 1), traces.eager),
    "calls_incomplete": (calls("update_step", 2), traces.incomplete),
    "all_updated": (all_updated, traces.no_gradients),
    "never_updated": (tracer.assert_never_updated("*kernel").check, traces.accumulation),
    "never_updated_of_what_is_not": (
        tracer.assert_never_updated("layer_42/attention/*").check,
        traces.many_variables,
    ),
    "never_ran_of_all": (all_updated, traces.never_ran),
    "another_optimizer": (expect_updates(total=1), lambda: unused("adam")),
    "not_seen": (expect_updates(total=1), lambda: traces.changed(unused("adam"), **LATE)),
    "not_seen_of_all": (all_updated, lambda: traces.changed(unused("adam"), **LATE)),
    "all_of_no_variables": (tracer.assert_all_updated([]).check, traces.eager),
    "none_of_no_variables": (tracer.assert_never_updated([]).check, traces.eager),
    "never_updated_of_nothing": (tracer.assert_never_updated("*kernel").check, traces.never_ran),
}


@pytest.mark.parametrize("name", FAILURES)
def test_the_text_of_a_failure(name: str) -> None:
    check, trace = FAILURES[name]
    assert_golden(f"testing/{name}.txt", check(trace()) + "\n")


HOLD: list[tuple[Check, Callable[[], Trace]]] = [
    (expect_updates(dense=2, sparse=0, total=2, per_step=True), traces.eager),
    (expect_updates(dense=20, sparse=0, total=20, at_least=20, at_most=20), traces.eager),
    (expect_updates(at_least=0), traces.nothing),
    (expect_updates(total=0), traces.nothing),
    (expect_updates(at_least=2, at_most=2, per_step=True), traces.eager),
    (expect_updates(dense=1, per_step=True, variable="dense/kernel"), traces.eager),
    (expect_updates(dense=2, per_step=True, variable="dense/*"), traces.eager),
    (expect_updates(dense=504, sparse=126), traces.embedding_on_two_replicas),
    (expect_updates(at_most=5, per_step=True), traces.embedding_on_two_replicas),
    (expect_updates(dense=8), traces.direct_calls),
    (expect_updates(sparse=0, per_step=True), traces.direct_calls),
    (executions("apply_gradients", 1, per_step=True), traces.accumulation),
    (executions("update_step", 64), traces.accumulation),
    (executions("_resource_apply_dense", 0), traces.accumulation),
    (calls("update_step", 8), traces.accumulation),
    (tracer.assert_calls("update_step", 20).check, traces.eager),
    (tracer.assert_calls("update_step", at_least=2, variable="*bias").check, traces.accumulation),
    (tracer.assert_never_updated("unused/*").check, traces.no_gradients),
    (expect_updates(total=6, variable="w"), lambda: traces.trained(("w", "w#2"), Run(1, 1, 3))),
]


@pytest.mark.parametrize("number", range(len(HOLD)))
def test_what_holds(number: int) -> None:
    check, trace = HOLD[number]
    assert check(trace()) == ""


def test_what_was_never_updated_is_named_where_other_variables_made_up_for_it() -> None:
    """The steps with three updates are right by chance: the kernel has no gradient there."""
    blocks = (
        block([step(), request(0, kind="none"), request(1, 2), update(1, 2)], Run(1, 1, 12)),
        block([update(1)], Run(3, 3, 2), is_step=False),
        block([update(2)], Run(4, 4, 3), is_step=False),
    )
    trace = traces.keras3(("kernel", "bias", "scale"), blocks, ())
    message = " ".join(expect_updates(at_least=3, per_step=True)(trace).split())
    assert "got 2 in 7 of 12 steps (1-2, 5, 7, ...)" in message
    assert "kernel 0 0 0 0 never updated: no gradient in 12 steps" in message
    assert "kernel was never updated: the gradient was None each time" in message


def test_graphs_that_never_ran_explain_no_count_that_others_gave() -> None:
    for make, explains in ((traces.eager, False), (traces.never_ran, True)):
        trace = traces.changed(make(), graphs=(Graph(0, 0, "train", "", 2, 2, 0, 0),))
        assert [each.code for each in trace.findings()] == ["graph-never-ran"]
        assert ("never ran" in expect_updates(dense=3)(trace)) == explains


@pytest.mark.parametrize("per_step", [False, True])
@pytest.mark.parametrize("name", ["dense", "total", "at_least", "at_most"])
@pytest.mark.parametrize("off", [-1, 0, 1])
def test_limits_are_exact(name: str, off: int, per_step: bool) -> None:
    number = 2 if per_step else 20
    wrong = {"at_least": off > 0, "at_most": off < 0}.get(name, off != 0)
    numbers = {name: number + off}
    text = expect_updates(per_step=per_step, **numbers)(traces.eager())
    assert bool(text) == wrong


@pytest.mark.parametrize(
    "check",
    [
        expect_updates(at_least=0),
        executions("update_step", 200),
        calls("update_step", 2),
        tracer.assert_never_updated("*embedding*").check,
        tracer.assert_all_updated([]).check,
    ],
)
def test_an_incomplete_trace_never_passes(check: Check) -> None:
    assert check(traces.incomplete())


def test_an_assertion_without_with_warns_at_its_line() -> None:
    with pytest.warns(RuntimeWarning, match="this assertion asserts nothing: write") as caught:
        tracer.assert_updates(total=4)
    assert caught[0].filename == __file__
    with warnings.catch_warnings(), pytest.raises(TypeError):
        warnings.simplefilter("error")
        tracer.assert_updates()  # the mistake alone is said


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: tracer.assert_updates(),
            TypeError,
            "give one of dense=, sparse=, total=, at_least= and at_most=",
        ),
        (
            lambda: tracer.assert_executions("update_step"),
            TypeError,
            "assert_executions() takes either a count, or at_least= and at_most=",
        ),
        (
            lambda: tracer.assert_calls("update_step", 4, at_most=5),
            TypeError,
            "assert_calls() takes either a count, or at_least= and at_most=",
        ),
        (
            lambda: tracer.assert_updates(dense=True),
            TypeError,
            "dense updates: a count is an int, not True",
        ),
        (lambda: tracer.assert_updates(total=-1), ValueError, "updates: no count is -1"),
        (
            lambda: tracer.assert_updates(at_least=2, at_most=1),
            ValueError,
            "updates: no count is 2 to 1",
        ),
        (
            lambda: tracer.assert_calls("update_stepp", 1),
            tracer.UnknownName,
            "no method 'update_stepp': tracer counts update_step, update, "
            "_parallel_update_step, leaf update, step and 10 more",
        ),
    ],
)
def test_what_makes_no_sense(
    make: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        make()
    assert str(caught.value) == message


# Names that nothing has.


@pytest.mark.parametrize(
    ("wanted", "near"),
    [("hiden/*", "net/hidden/"), ("net/out/kernel:0", "net/out/kernel"), ("decoder", "net/")],
)
def test_the_near_name_of_one_that_is_not_there(wanted: str, near: str) -> None:
    names = ("net/hidden/kernel", "net/hidden/bias", "net/out/kernel", "net/out/bias")
    blocks = (block([step(), request(0, 1, 2, 3), update(0, 1, 2, 3)], Run(1, 1, 2)),)
    trace = traces.keras3(names, blocks, (called(1, (0, 1, 2, 3), eager=2),))
    with pytest.raises(tracer.UnknownName, match=f": the trace holds {near}"):
        trace.updates(variable=wanted)
    checks = {
        "assert_updates": expect_updates(total=0, variable=wanted),
        "assert_calls": tracer.assert_calls("update_step", 0, variable=wanted).check,
        "assert_never_updated": tracer.assert_never_updated(wanted).check,
        "in a list": tracer.assert_never_updated([wanted]).check,
    }
    for name, check in checks.items():
        assert f"The trace holds {near}" in " ".join((check(trace) or "").split()), name
    (verdict,) = verdicts(trace, [read(f"updates[{wanted}]=0")])
    assert verdict.reason == checks["assert_updates"](trace)


def test_a_name_does_not_say_what_should_be_updated() -> None:
    with pytest.raises(TypeError, match="a layer or a model, not None"):
        tracer.assert_all_updated(None).check(traces.eager())
    with pytest.raises(TypeError, match=r"a model, a layer or variables, not 'dense/\*'"):
        tracer.assert_all_updated("dense/*")
