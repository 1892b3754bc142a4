"""What parameters are called, and what reports, findings and assertions say of PyTorch."""

import sys
from typing import Any

import pytest
import torch
from support.torch_odometers import Odometer, give, readings, zeros
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import tracer
from tracer.backends.torch import parameters
from tracer.core.instances import instances
from tracer.model.trace import Trace
from tracer.reporters import text

torch.set_num_threads(1)


def stepped(optimizer: Any, times: int = 1) -> Trace:
    """The trace of an optimizer that has stepped with all gradients."""
    tracer.wrap(optimizer)
    for _ in range(times):
        give([p for group in optimizer.param_groups for p in group["params"]])
        optimizer.step()
    return tracer.trace_of(optimizer)


def names(trace: Trace) -> list[str]:
    return [variable.name for variable in trace.variables]


def test_names_are_those_of_the_model() -> None:
    inner = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    model = torch.nn.ModuleDict({"body": inner, "head": torch.nn.Linear(2, 1)})
    trace = stepped(Odometer(model.parameters()))
    assert names(trace) == [name for name, _ in model.named_parameters()]
    assert trace.updates(variable=model["head"].weight) == 1
    assert trace.updates(variable="body.*") == 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*")
def test_what_stands_around_a_model_is_no_part_of_a_name() -> None:
    model = torch.nn.Linear(2, 1)
    derived = type("Mine", (torch.nn.DataParallel,), {})
    for around in (torch.nn.DataParallel, derived):
        assert names(stepped(Odometer(around(model).parameters()))) == ["weight", "bias"]
    compiled = torch.compile(model)
    assert names(stepped(Odometer(compiled.parameters()))) == ["weight", "bias"]
    layers = torch.nn.Sequential(checkpoint_wrapper(torch.nn.Linear(2, 1)))
    expected = ["0.weight", "0.bias"]
    assert names(stepped(Odometer(layers.parameters()))) == expected
    assert [name for name, _ in layers[0].named_parameters(prefix="0")] == expected


def test_what_a_module_holds_under_names_of_pytorch_ends_no_count() -> None:
    odd, model = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    odd.meta = 5
    trace = stepped(Odometer(model.parameters()))
    assert trace.complete and trace.updates() == 2
    assert names(trace) == ["weight", "bias"]


def test_a_parameter_with_two_names_has_the_first_as_in_named_parameters() -> None:
    model = torch.nn.ModuleDict({"first": torch.nn.Linear(2, 2), "last": torch.nn.Linear(2, 2)})
    model["last"].weight = model["first"].weight
    trace = stepped(Odometer(model.parameters()))
    assert names(trace) == [name for name, _ in model.named_parameters()]


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What each search for models looked for."""
    made: list[Any] = []

    def counted(wanted: Any) -> list[Any]:
        made.append(wanted)
        return instances(wanted)

    monkeypatch.setattr(parameters, "instances", counted)
    monkeypatch.setattr(parameters.models, "vain", 0)
    return made


def test_models_are_searched_once_for_many_optimizers(searches: list[Any]) -> None:
    """As where each parameter has an optimizer, which steps in the backward pass."""
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(10)))
    optimizers = [Odometer([each]) for each in model.parameters()]
    found = [name for each in optimizers for name in names(stepped(each))]
    assert found == [name for name, _ in model.named_parameters()]
    assert len(searches) == 1
    for _ in range(20):  # new ones of parameters that are known
        stepped(Odometer(model.parameters()))
    assert len(searches) <= 5
    groups = optimizers[0].param_groups[0]
    for each in [*zeros(2), model[0].weight] * 5:  # others, and again the same
        groups["params"] = [each]
        stepped(optimizers[0])
    assert len(searches) <= 8


@pytest.mark.parametrize("plain", [True, False])
def test_models_are_not_searched_for_each_new_loose_tensor(
    searches: list[Any], plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in attacks and style transfer; a parameter that no module holds waits for the reading."""
    monkeypatch.setattr(parameters, "_TRIES", 10)
    loose = []
    with tracer.record() as recording:
        for _ in range(100):
            tensor = torch.zeros(2, requires_grad=True)
            loose.append(tensor if plain else torch.nn.Parameter(tensor))
            give([loose[-1]])
            Odometer([loose[-1]]).step()
        model = torch.nn.Linear(2, 1)
        give(list(model.parameters()))
        Odometer(model.parameters()).step()
    trace = recording.trace()
    assert readings(loose) == [1] * 100 and trace.updates() == 102
    assert names(trace)[100:] == ["weight", "bias"]
    assert len(searches) <= (2 if plain else 12)


def test_what_an_optimizer_leaves_out_is_found_after_loose_parameters(searches: list[Any]) -> None:
    with tracer.record() as recording:
        for own in zeros(12):
            give([own])
            Odometer([own]).step()
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
        optimizer = Odometer(model[0].parameters())
        for _ in range(5):
            give(list(model.parameters()))
            optimizer.step()
    (found,) = [each for each in recording.trace().findings() if each.code == "never-passed"]
    assert list(found.variables) == ["1.weight", "1.bias"] and len(searches) >= 13


def test_names_that_repeat_are_told_apart() -> None:
    first, second = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    trace = stepped(Odometer([*first.parameters(), *second.parameters()]))
    assert names(trace) == ["weight", "bias", "weight#2", "bias#2"]
    assert trace.updates(variable=second.bias) == 1


def test_names_without_a_model() -> None:
    alone = zeros(2)
    groups = [{"params": alone[:1]}, {"params": alone[1:]}]
    assert names(stepped(Odometer(groups))) == ["param_groups[0][0]", "param_groups[1][0]"]
    named = Odometer([("one", zeros(1)[0]), ("two", zeros(1)[0])])
    assert names(stepped(named)) == ["one", "two"]
    model = torch.nn.Linear(2, 1)
    given = [(f"parameter_{name}", own) for name, own in model.named_parameters()]
    assert names(stepped(Odometer(given))) == ["parameter_weight", "parameter_bias"]


def test_a_parameter_that_takes_the_place_of_another() -> None:
    parameters = zeros(1)
    optimizer = Odometer(parameters)
    stepped(optimizer)
    del parameters
    for _ in range(3):  # as in Gaussian splatting: the old one is gone, the new one may have its id
        optimizer.param_groups[0]["params"][0] = zeros(1)[0]
        give(optimizer.param_groups[0]["params"])
        optimizer.step()
    trace = tracer.trace_of(optimizer)
    assert [trace.updates(variable=name) for name in names(trace)] == [1, 1, 1, 1]


def test_a_group_whose_parameters_are_frozen_has_no_rate() -> None:
    one, frozen = zeros(2)
    frozen.requires_grad_(False)
    groups = [{"params": [one]}, {"params": [frozen], "lr": 0.001}]
    optimizer = tracer.wrap(torch.optim.AdamW(groups, lr=0.01))
    give([one])
    optimizer.step()
    said = " ".join(text.render(tracer.trace_of(optimizer)).split())
    assert "Learning rate 0.01 in all steps; weight decay 0.01 on 1 parameter." in said


class Derived(torch.optim.SGD):  # type: ignore[misc]
    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.more = 1


@pytest.mark.parametrize("cls", [torch.optim.Adam, Derived])
def test_an_optimizer_is_where_it_was_made_and_not_where_it_steps(cls: Any) -> None:
    before = cls(zeros(1), lr=0.1)
    with tracer.record() as recording:
        made, line = cls(zeros(1), lr=0.1), sys._getframe().f_lineno
        made.step()
        before.step()
    (first, second) = (each.made for each in recording.trace().optimizers)
    assert first.endswith(f"test_names_and_reports.py:{line}") and second == ""
    assert torch.optim.Optimizer.__init__.__name__ == "__init__"


def test_an_optimizer_that_never_steps_was_not_denied_its_parameters() -> None:
    model = torch.nn.Linear(3, 1)
    torch.optim.Adam(model.parameters())
    with (
        pytest.raises(AssertionError, match="no step ran"),
        tracer.assert_all_updated(model),
    ):
        model(torch.randn(4, 3)).mean().backward()


def test_assertions_on_modules_and_parameters() -> None:
    model, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model.weight.sum().backward()
        optimizer.step()

    with (
        tracer.assert_updates(optimizer, dense=1, sparse=0, per_step=True),
        tracer.assert_updates(variable=model, total=1),
        tracer.assert_never_updated(model.bias),
        tracer.assert_never_updated("bias"),
        tracer.assert_all_updated([model.weight]),
    ):
        step()

    def fails(assertion: Any, message: str) -> None:
        with pytest.raises(AssertionError, match=message), assertion:
            step()

    fails(tracer.assert_updates(optimizer, dense=9), r"parameter +updates")
    of_two = "and bias: expected 2, got 1: 1 in 1 step\n"
    fails(tracer.assert_updates(variable=model, total=2), of_two)
    not_passed = "of weight and bias: expected 1, but no such"
    fails(tracer.assert_updates(variable=other, total=1), not_passed)
    fails(tracer.assert_all_updated(model), r"bias [0 ]+\n +never updated: no gradient")
    model.bias.requires_grad_(False)
    fails(tracer.assert_all_updated(model), r"bias [0 ]+ never updated; frozen")
    trained = (own for own in model.parameters() if own.requires_grad)
    with tracer.assert_all_updated([*trained, torch.nn.BatchNorm1d(2, affine=False)]):
        step()
    other.requires_grad_(False)
    fails(tracer.assert_all_updated([model.weight, other]), "got 0 for 2 of ")


@pytest.mark.parametrize("copy", ["data", "detach", "clone"])
@pytest.mark.parametrize("assertion", [tracer.assert_never_updated, tracer.assert_all_updated])
def test_a_tensor_that_is_no_parameter_proves_nothing(assertion: Any, copy: str) -> None:
    model, frozen = torch.nn.Linear(2, 1), torch.nn.Parameter(torch.ones(1), requires_grad=False)
    optimizer = Odometer(model.parameters())
    other = getattr(model.weight, copy)
    with (
        pytest.raises(AssertionError, match="is not a parameter: give the parameter itself"),
        assertion(other if copy == "data" else other()),
    ):
        stepped(optimizer)
    with tracer.assert_never_updated([frozen, torch.ones(1, requires_grad=True)]):
        stepped(optimizer)
