"""What steps of `torch.optim` did to the parameters, against their bytes.

Copies are made outside, before and after each step, and NumPy compares them: bits for *unchanged*,
and whether all is finite.
"""

import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from backends.torch_optim.test_truth_table import ROWS
from support.ran import by_step, check, check_effects
from support.torch_bytes import ByBytes, Waits
from support.torch_odometers import Around, Odometer, give, readings, zeros

import tracer
from tracer.backends.torch import effects as torch_effects

torch.set_num_threads(1)
INFINITE, NAN = float("inf"), float("nan")
GRADIENTS = [1.0, 0.0, -0.0, 1e-30, 0.5, INFINITE, 1.0, 0.0, NAN, NAN, 0.0, 1.0]
"""Of each step; what is small is lost beside the weight, and what is once NaN stays NaN."""


class Plain(torch.optim.Optimizer):  # type: ignore[misc]
    """Subtracts the gradient, of whatever type; sparse ones from their rows."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad)


def named(parameters: Sequence[Any]) -> list[tuple[str, Any]]:
    return [(f"p{number}", parameter) for number, parameter in enumerate(parameters)]


def parameter(dtype: torch.dtype, shape: tuple[int, ...] = (3, 2)) -> Any:
    return torch.nn.Parameter(torch.full(shape, 2.0).to(dtype))


FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
DTYPES = (*FLOATING, torch.complex64, torch.complex128)


@pytest.mark.parametrize("held_back", [False, True])
def test_weights_of_many_types(held_back: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits are compared, so a NaN that stays is unchanged.

    Elsewhere than on the CPU, the answers of a step are read together.
    """
    monkeypatch.setattr(torch_effects, "is_held_back", lambda tensor: held_back)
    shapes = [(3, 2), (), (4,), (0,)]
    parameters = [parameter(dtype, shapes[n % 4]) for n, dtype in enumerate(DTYPES)]
    parameters.append(torch.nn.Parameter(torch.ones(4, 6).t()[::2]))  # not in the order of memory
    conjugate = torch.full((3,), 2 - 2j).conj()
    parameters += [torch.nn.Parameter(conjugate), torch.nn.Parameter(conjugate.imag)]
    assert conjugate.is_conj() and conjugate.imag.is_neg()  # which PyTorch has only noted
    optimizer = tracer.wrap(Plain(named(parameters)), effects=True)
    truth = ByBytes(dict(named(parameters)))
    for amount in GRADIENTS:
        give(parameters, amount)
        truth.around(optimizer.step)
    trace = tracer.trace_of(optimizer)
    assert truth.unchanged and truth.not_finite and trace.complete
    truth.agrees_with(trace)


@pytest.mark.parametrize("name", ROWS)
def test_each_way_to_train(name: str) -> None:
    """A step changes what the odometer shows and leaves the rest; the counts are what they are."""
    ran = ROWS[name](lambda optimizer: tracer.wrap(optimizer, effects=True))
    trace = tracer.trace_of(ran.optimizer)
    check(trace, ran)
    halves = 2 if name.endswith(("twice", "half way")) else 1  # of what one step updates
    check_effects(trace, ran._replace(times=halves))
    requested = sum(trace.count("requests", by=()).values())
    if not any(each in name for each in ("closure", "lazy", "by itself")):
        assert sum(trace.count("compared", by=()).values()) == requested


def test_a_parameter_with_another_shape_or_other_memory() -> None:
    """A step may exchange the memory of a parameter: it is compared if it can be."""

    class Exchanging(torch.optim.Optimizer):  # type: ignore[misc]
        number = 0

        def step(self, closure: Any = None) -> None:
            self.number += 1
            (only,) = self.param_groups[0]["params"]
            with torch.no_grad():
                if self.number == 2:
                    only.data = only.data.clone()  # the same bits
                elif self.number == 3:
                    only.data = torch.zeros(5)
                elif self.number == 4:
                    only.data = only.data.to(torch.float64)
                only.grad = None

    only = parameter(torch.float32)
    optimizer = tracer.wrap(Exchanging([("p0", only)], {}), effects=True)
    for _ in range(5):
        only.grad = torch.zeros_like(only)
        optimizer.step()
    trace = tracer.trace_of(optimizer)
    assert set(trace.count("unchanged", by=("step",))) == {(1,), (2,), (5,)}
    assert trace.count("compared", by=()) == {(): 5}


def test_what_cannot_be_compared_is_said() -> None:
    sparse = torch.nn.Parameter(torch.eye(2).to_sparse())
    meta = torch.nn.Parameter(torch.zeros(2, device="meta"))
    plain = parameter(torch.float32)
    optimizer = tracer.wrap(Plain([sparse, meta, plain]), effects=True)
    optimizer.step()  # without gradients
    trace = tracer.trace_of(optimizer)
    assert trace.complete
    assert len(trace.notes) == 2 and all("it is not compared" in note for note in trace.notes)
    assert trace.count("compared", by=()) == {(): 1}


def test_what_comes_in_a_step_is_compared_from_the_next_one_on() -> None:
    """A lazy parameter that a closure makes, and one that it adds to the optimizer."""
    layer, parameters = torch.nn.LazyLinear(2), zeros(2)
    optimizer = tracer.wrap(Odometer([*layer.parameters(), parameters[0]]), effects=True)

    def closure() -> None:
        optimizer.zero_grad()
        layer(torch.ones(1, 3)).sum().backward()
        give(parameters)
        if len(optimizer.param_groups) == 1:
            optimizer.add_param_group({"params": parameters[1:]})

    for _ in range(3):
        optimizer.step(closure)
    trace = tracer.trace_of(optimizer)
    assert by_step(trace) == [4, 4, 4] and trace.complete
    assert trace.count("compared", by=("step",)) == {(1,): 1, (2,): 4, (3,): 4}


def test_autograd_does_not_know_it() -> None:
    """No version of a tensor moves, nothing asks for a gradient, and no hook of it is called."""
    weight = parameter(torch.float32)
    optimizer = tracer.wrap(Plain([weight]), effects=True)
    versions, kept = [], []
    for _ in range(3):
        loss = (weight**2).sum()
        loss.backward()
        before = weight._version, weight.data_ptr(), weight.grad._version, weight.grad.data_ptr()
        optimizer.step()
        versions.append(weight._version - before[0])
        assert (weight.data_ptr(), weight.grad.data_ptr()) == (before[1], before[3])
        assert weight.grad._version == before[2] and weight.grad_fn is None
        kept.append(weight.requires_grad and weight.is_leaf)
    assert versions == [1, 1, 1] and all(kept)  # of the optimizer's own `sub_`


def test_the_copies_live_as_long_as_the_step() -> None:
    copies: list[Any] = []
    copy_of = torch_effects.Effects.copy_of

    def remembered(self: Any, tensor: Any) -> Any:
        copy = copy_of(self, tensor)
        copies.append(weakref.ref(copy))
        return copy

    class Looking(Odometer):
        def step(self, closure: Any = None) -> Any:
            alive.append(sum(each() is not None for each in copies))
            return super().step(closure)

    alive: list[int] = []
    parameters = zeros(3)
    frozen = torch.nn.Parameter(torch.zeros(1), requires_grad=False)
    optimizer = tracer.wrap(Looking([*parameters, frozen]), effects=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_effects.Effects, "copy_of", remembered)
        for _ in range(3):
            give(parameters)
            optimizer.step()
            alive.append(sum(each() is not None for each in copies))
    assert alive == [3, 0] * 3  # a class of which `super().step()` steps has one copy of each, too


@pytest.mark.long
@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*")
def test_nothing_of_the_tracer_is_compiled_but_its_hooks() -> None:
    """Dynamo gives up on the frame around the inner step, and would compile what the hooks call."""
    torch._dynamo.reset()
    parameters = zeros()
    optimizer = tracer.wrap(Around(Odometer(parameters)), effects=True)
    step = torch.compile(optimizer.step, backend="eager")
    for _ in range(3):
        give(parameters)
        step()
    compiled = [reference() for reference in torch._dynamo.convert_frame.input_codes.seen]
    folder = str(Path(tracer.__file__).parent)
    ours = [each for each in compiled if each and each.co_filename.startswith(folder)]
    assert {each.co_name for each in ours} <= {"hook"}
    assert readings(parameters) == [3, 3, 3] and not tracer.trace_of(optimizer).complete


@pytest.mark.parametrize("effects", [False, True])
def test_no_operator_of_a_step_waits_for_a_device(
    effects: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, with masked gradients; with effects, a list is made of all answers at once.

    `tests/gpu` has the same on a GPU, where values of the parameters are read once.
    """
    if torch.get_default_device().type == "cuda":
        pytest.skip("stands for a GPU")
    monkeypatch.setattr(torch_effects, "is_held_back", lambda tensor: True)
    parameters = zeros()
    optimizer = tracer.wrap(Odometer(parameters), effects=effects)
    with Waits() as waits:
        for _ in range(20):
            give(parameters)
            parameters[0].grad[0] = 0
            optimizer.step()
    assert waits.called == []
    trace = tracer.trace_of(optimizer)
    assert readings(parameters) == [20, 20, 20] and by_step(trace) == [3] * 20
    if effects:
        assert trace.count("compared", by=()) == {(): 60}
        assert not sum(trace.count("unchanged", by=()).values())
