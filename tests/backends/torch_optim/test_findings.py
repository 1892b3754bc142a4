"""What is found of parameters that no optimizer has, and of what is near it and fine.

Most programs are in `twins/on_torch.py`.
"""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.findings_of import bad
from twins.on_torch import SGD, net, step

import tracer
from tracer.backends.torch import freeze_monitor
from tracer.model.evidence import NeverPassed
from tracer.model.trace import summaries_of


def found(train: Callable[[], Any]) -> set[str]:
    """The codes of the errors and warnings of a program."""
    with tracer.record() as recording:
        train()
    return {each.code for each in bad(recording.trace())}


def test_a_gradient_of_a_phase_before_is_fine() -> None:
    model = net()
    model(torch.ones(4, 3)).mean().backward()
    optimizer = SGD(model[1].parameters(), 0.1)

    def train() -> None:
        for _ in range(4):
            optimizer.zero_grad()
            model[1](torch.ones(4, 2)).mean().backward()
            optimizer.step()

    assert not found(train)


def test_what_another_optimizer_trains_or_the_program_itself_is_fine() -> None:
    for by_hand in (False, True):
        model = net()
        model[0].requires_grad_(False)
        optimizer = SGD(model[1].parameters(), 0.1)
        other = SGD(model[0].parameters(), 0.1)

        def train(model: Any = model, by_hand: bool = by_hand, first: Any = optimizer) -> None:
            step(first, model)
            model[0].requires_grad_(True)
            for _ in range(3):
                step(first, model)
                if by_hand:
                    with torch.no_grad():
                        for p in model[0].parameters():
                            p -= 0.1 * p.grad

        tracer.wrap(optimizer)
        train()
        assert not tracer.trace_of(optimizer).findings()
        del other


def test_parameters_at_the_addresses_of_others_that_the_optimizer_had() -> None:
    def train() -> None:
        model = torch.nn.ModuleDict({"body": torch.nn.Linear(3, 3), "head": torch.nn.Linear(3, 1)})
        optimizer = SGD(model.parameters(), 0.1)

        def steps() -> None:
            for _ in range(5):
                model.zero_grad()
                model["head"](model["body"](torch.randn(4, 3))).pow(2).mean().backward()
                optimizer.step()

        steps()
        gone = set(map(id, model["head"].parameters()))
        optimizer.param_groups[0]["params"] = list(model["body"].parameters())
        del model["head"]
        heads = [torch.nn.Linear(3, 1)]
        while gone.isdisjoint(map(id, heads[-1].parameters())) and len(heads) < 1000:
            heads.append(torch.nn.Linear(3, 1))
        if gone.isdisjoint(map(id, heads[-1].parameters())):
            pytest.skip("Python used no address again")
        model["head"] = heads.pop()
        other = net()
        step(SGD(other.parameters(), 0.1), other)  # all models are searched
        optimizer.param_groups[0]["params"].reverse()
        steps()

    with tracer.record() as recording:
        train()
    found = [own for each in summaries_of(recording.trace()) for own in each.evidence(NeverPassed)]
    ((_, never),) = found
    assert {*never.names} == {"head.weight", "head.bias"}  # in the order of the addresses


Rows = dict[str, tuple[str, int]]


def frozen_first(model: Any) -> tuple[Any, Rows]:
    """The optimizer gets all, also what is frozen."""
    model[0].requires_grad_(False)
    return SGD(model.parameters(), 0.1), {"0.weight": ("frozen", 0), "0.bias": ("frozen", 0)}


def frozen_later(model: Any) -> tuple[Any, Rows]:
    optimizer = SGD(model.parameters(), 0.1)
    optimizer.freeze_after = 4, model[0]
    return optimizer, {"0.weight": ("frozen", 4), "0.bias": ("frozen", 4)}


def not_passed(model: Any) -> tuple[Any, Rows]:
    model[0].weight.requires_grad_(False)
    why = {"0.weight": ("frozen", 0), "0.bias": ("not passed", 0)}
    return SGD(model[1].parameters(), 0.1), why


def not_passed_then_frozen(model: Any) -> tuple[Any, Rows]:
    optimizer = SGD(model[1].parameters(), 0.1)
    optimizer.freeze_after = 3, model[0]
    return optimizer, {"0.weight": ("frozen", 3), "0.bias": ("frozen", 3)}


def of_an_optimizer_that_never_steps(model: Any) -> tuple[Any, Rows]:
    optimizer = SGD(model[1].parameters(), 0.1)
    optimizer.other = SGD(model[0].parameters(), 0.1)
    return optimizer, {}


def of_another_model(model: Any) -> tuple[Any, Rows]:
    optimizer = SGD(model.parameters(), 0.1)
    optimizer.other = net().requires_grad_(False), net()
    return optimizer, {}


def in_wrappers_and_lists(model: Any) -> tuple[Any, Rows]:
    model.layers = [torch.nn.Linear(2, 2)]
    optimizer = SGD(model.parameters(), 0.1)
    optimizer.other = torch.nn.DataParallel(model)
    return optimizer, {f"layers[0].{of}": ("not passed", 0) for of in ("weight", "bias")}


def tied(model: Any) -> tuple[Any, Rows]:
    model[0].register_parameter("again", model[0].weight)
    return SGD(model.parameters(), 0.1), {}


def lazy(model: Any) -> tuple[Any, Rows]:
    model.later = torch.nn.LazyLinear(2)
    optimizer = SGD([*model[0].parameters(), *model[1].parameters()], 0.1)
    return optimizer, {f"later.{of}": ("not passed", 0) for of in ("weight", "bias")}


@pytest.mark.parametrize(
    "make",
    [
        frozen_first,
        frozen_later,
        not_passed,
        not_passed_then_frozen,
        of_an_optimizer_that_never_steps,
        of_another_model,
        in_wrappers_and_lists,
        tied,
        lazy,
    ],
)
def test_the_parameters_of_a_model_that_its_optimizer_does_not_update(make: Any) -> None:
    """Each has a row, and the reason: also when the model is gone."""
    with tracer.record() as recording:
        model = net()
        optimizer, expected = make(model)
        number, layer = getattr(optimizer, "freeze_after", (0, None))
        for done in range(8):
            if layer is not None and done == number:
                layer.requires_grad_(False)
            step(optimizer, model)
        model.requires_grad_(False)  # for inference
        del model, layer, optimizer
    trace = recording.trace()
    found = {
        trace.variables[index].name: (each.why, each.since)
        for each in trace.data.not_updated
        for index in each.variables
    }
    assert found == expected


def test_what_an_optimizer_without_a_step_had_is_passed_though_it_is_gone() -> None:
    model = net()

    def train() -> None:
        optimizer, _unused = [SGD(model[layer].parameters(), 0.1) for layer in (0, 1)]
        step(optimizer, model)

    with tracer.record() as recording:
        train()
    trace = recording.trace()
    assert (trace.data.not_updated, [each.code for each in bad(trace)]) == ((), ["never-used"])


@pytest.mark.parametrize("module", ["train", "trainer", "torch.autograd.graph"])
@pytest.mark.parametrize("is_near", [False, True])
def test_gradients_that_another_thread_may_write_are_not_read(
    monkeypatch: pytest.MonkeyPatch, module: str, is_near: bool
) -> None:
    """A backward pass may write them without Python's lock, which crashed PyTorch."""
    read, look = set[int](), freeze_monitor._Parameter.look

    def noting(self: Any, own: torch.Tensor, *given: Any) -> None:
        read.update({id(own)} if given[-1] else ())
        look(self, own, *given)

    monkeypatch.setattr(freeze_monitor._Parameter, "look", noting)
    other, own = models = torch.nn.ModuleList([torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)])
    optimizer = tracer.wrap(torch.optim.SGD(own.parameters(), 0.1))
    if not is_near:
        del models
    entered, done = threading.Event(), threading.Event()
    outside: dict[str, Any] = {"entered": entered, "done": done, "__name__": module}
    outside |= {"torch": torch} if module == "trainer" else {}
    file = "train.py" if module == "train" else f"/site-packages/{module}.py"
    exec(compile("work = lambda: entered.set() or done.wait(60)", file, "exec"), outside)
    thread = threading.Thread(target=outside["work"])
    thread.start()
    entered.wait(60)

    def train() -> None:
        own(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    train()
    assert read == {id(parameter) for parameter in own.parameters()}
    done.set()
    thread.join()
    train()
    assert read > {id(parameter) for parameter in other.parameters()}
