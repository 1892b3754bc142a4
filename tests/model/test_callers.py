"""Callers as a tree: what the counts of its branches are, and that they add up."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from support import traces

from tracer.errors import UnknownName
from tracer.model import callers
from tracer.model.callers import Caller
from tracer.model.records import Line

FIRST, SECOND, EAGER = (
    "train.py:50 > train.py:41 main > Model.fit > train_function > "
    "model.py:88 MyModel.train_step > Adam.minimize > Adam.apply_gradients",
    "train.py:50 > train.py:44 main > Model.fit > train_function > "
    "model.py:88 MyModel.train_step > Adam.minimize > Adam.apply_gradients",
    "train.py:50 > steps/warm.py:12 warm_up > Adam.apply_gradients",
)


def everyone(caller: Caller) -> Iterator[Caller]:
    yield caller
    for child in caller.children:
        yield from everyone(child)


def called(caller: Caller, *names: str) -> Caller:
    for name in names:
        (caller,) = (each for each in caller.children if callers.label(each.line or NONE) == name)
    return caller


NONE = Line("")


@pytest.mark.parametrize("name", traces.ALL)
def test_the_tree_adds_up_to_the_trace(name: str) -> None:
    trace = traces.ALL[name]()
    whole = trace.callers()
    assert whole.line is None
    assert whole.executions == trace.executions()
    assert whole.updates == trace.updates()
    assert whole.calls == trace.calls()
    for caller in everyone(whole):
        for count in ("executions", "updates", "calls"):
            below = sum(getattr(each, count) for each in caller.children)
            assert below <= getattr(caller, count)
        order = [(-each.executions, -each.calls) for each in caller.children]
        assert order == sorted(order)


@pytest.mark.parametrize("name", traces.ALL)
def test_splits_by_caller_add_up_to_the_trace(name: str) -> None:
    trace = traces.ALL[name]()
    for what in ("updates", "executions", "calls"):
        split = trace.count(what, by="caller")
        assert sum(split.values()) == getattr(trace, what)()


def test_the_counts_are_those_of_each_line() -> None:
    """Two replicas, 11 variables: 40, 20 and 3 steps by three lines."""
    trace = traces.several_callers()
    (root,) = trace.callers("update_step").children
    assert (root.executions, root.steps, root.calls) == (2 * 11 * 63, 63, 2 * 11 * (2 + 3))
    fit, again, warm = root.children
    assert [each.executions for each in (fit, again, warm)] == [880, 440, 66]
    assert [each.steps for each in (fit, again, warm)] == [40, 20, 3]
    assert [each.calls for each in (fit, again, warm)] == [44, 0, 66]
    step = called(fit, "Model.fit", "train_function", "model.py:88 MyModel.train_step")
    assert (step.executions, step.paths) == (880, frozenset({0}))
    end = called(step, "Adam.minimize", "Adam.apply_gradients", "update_step")
    assert (end.method, end.variables, end.replicas, end.children) == ("update_step", 11, 2, ())
    assert trace.count("updates", by="caller") == {
        (FIRST,): 880,
        (SECOND,): 440,
        (EAGER,): 66,
    }
    assert trace.count("calls", by=("caller", "context"), method="apply_gradients") == {
        (FIRST, "eager"): 0,
        (FIRST, "tracing"): 4,
        (EAGER, "eager"): 6,
        (EAGER, "tracing"): 0,
    }


def test_a_method_at_the_end_of_a_path_is_no_caller_of_itself() -> None:
    whole = traces.several_callers().callers("apply_gradients")
    end = called(whole, "train.py:50", "steps/warm.py:12 warm_up", "Adam.apply_gradients")
    assert (end.executions, end.children) == (6, ())


def test_filters_leave_what_they_leave_elsewhere() -> None:
    trace = traces.several_callers()
    (root,) = trace.callers(step=range(4, 45), variable="head/*", replica=1).children
    assert (root.executions, root.steps) == (2 * 41, 41)
    assert [each.executions for each in root.children] == [80, 2, 0]  # the third was called only
    assert trace.callers(variable="embedding/*").children == ()
    with pytest.raises(UnknownName, match="no method 'update'"):
        trace.callers("update")


def test_steps_are_those_of_one_replica_of_each_optimizer() -> None:
    assert traces.uneven_replicas().callers().steps == 10
    assert traces.two_optimizers().callers().steps == 10 + 30


def test_what_has_no_path_stands_apart() -> None:
    trace = traces.several_callers()
    blocks = [replace(each, path=None) for each in trace.blocks[:1]]
    trace = traces.changed(trace, blocks=(*blocks, *trace.blocks[1:]))
    lines = [callers.label(each.line or NONE) for each in trace.callers("update_step").children]
    assert lines == ["train.py:50", "caller not known"]
    assert trace.count("updates", by="caller", replica=0)[None,] == 33


def test_a_trace_of_version_1_knows_no_callers() -> None:
    assert not callers.known(traces.eager().data)
    assert callers.known(traces.several_callers().data)
    assert callers.known(traces.nothing().data)  # there is nothing to know
