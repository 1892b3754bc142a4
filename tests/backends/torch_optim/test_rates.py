"""Learning rates, schedules and weight decay of PyTorch, and steps that clear their gradients."""

import copy
from typing import Any

import pytest
import torch

import tracer
from tracer.model.evidence import Iterations
from tracer.model.phrases import sentences_on
from tracer.model.records import RateRun
from tracer.model.trace import summaries_of


def step(model: Any, optimizer: Any, *schedules: Any) -> None:
    """One batch."""
    optimizer.zero_grad()
    model(torch.ones(4, 3)).square().mean().backward()
    optimizer.step()
    for each in schedules:
        each.step()


def runs_of(trace: Any, what: str = "rate", group: int = 0) -> tuple[RateRun, ...]:
    rates = [each for each in trace.data.rates if (each.what, each.group) == (what, group)]
    return rates[0].runs if rates else ()


def said(trace: Any) -> str:
    return " ".join(sentences_on(summaries_of(trace)[0]))


def test_each_block_has_its_own_steps() -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=20)
    for _ in range(2):
        with tracer.record() as recording:
            rates = [optimizer.param_groups[0]["lr"]]
            for _ in range(5):
                step(model, optimizer, schedule)
                rates.append(optimizer.param_groups[0]["lr"])
        (run,) = runs_of(recording.trace())
        assert run == RateRun(1, 5, rates[0], rates[4], 5)
        assert "scheduled by LinearLR." in said(recording.trace())


def test_the_peak_of_a_rate_is_known_after_another_group_comes() -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = tracer.wrap(torch.optim.SGD([model.weight], 1.0))
    for rate in (0.1, 0.4, 0.4, 0.2):
        if rate == 0.2:
            optimizer.add_param_group({"params": [model.bias], "lr": 0.5})
        optimizer.param_groups[0]["lr"] = rate
        step(model, optimizer)
    text = "Learning rate 0.1 -> 0.4 -> 0.2 (3 values) on 1 parameter and 0.5 on 1 parameter."
    assert said(tracer.trace_of(optimizer)) == text


@pytest.mark.parametrize("moves", [False, True])
def test_the_rate_of_a_group_that_comes_later_is_known_when_the_optimizer_is_gone(
    moves: bool,
) -> None:
    model = torch.nn.Linear(3, 1)
    with tracer.record() as recording:
        optimizer = torch.optim.SGD([*model.parameters()][: 1 + moves], 0.1)
        step(model, optimizer)
        bias = optimizer.param_groups[0]["params"].pop() if moves else model.bias
        optimizer.add_param_group({"params": [bias], "lr": 0.01})
        step(model, optimizer)
        del optimizer
    of = ("", "") if moves else (" on 1 parameter", " on 1 parameter")
    assert said(recording.trace()) == "Learning rate 0.1{} and 0.01{}.".format(*of)


def test_a_rate_that_a_hook_after_the_step_sets_is_not_that_of_the_step() -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = tracer.wrap(torch.optim.SGD(model.parameters(), 0.1))
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    optimizer.register_step_post_hook(lambda *_: schedule.step())
    for _ in range(3):
        step(model, optimizer)
    assert said(tracer.trace_of(optimizer)) == "Scheduled by ExponentialLR."


def test_a_weight_decay_that_was_0_at_first() -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1, weight_decay=0.0)
    traces = []
    for decays in ((0.0, 0.0, 0.3), (0.3, 0.0), (0.0, 0.2)):
        with tracer.record() as recording:
            for decay in decays:
                optimizer.param_groups[0]["weight_decay"] = decay
                step(model, optimizer)
        traces.append(recording.trace())
    assert [runs_of(trace, "decay") for trace in traces] == [
        (RateRun(1, 3, 0.0, 0.3, 2),),
        (RateRun(1, 2, 0.3, 0.0, 2),),
        (RateRun(1, 2, 0.0, 0.2, 2),),
    ]
    assert "weight decay 0 -> 0.3 (2 values) on all 2 parameters" in said(traces[0])


def test_a_rate_in_a_tensor_is_read() -> None:
    model = torch.nn.Linear(3, 1)
    rate = torch.tensor(0.5)
    optimizer = tracer.wrap(torch.optim.Adam(model.parameters(), rate, foreach=False))
    step(model, optimizer)
    rate.fill_(0.25)
    step(model, optimizer)
    assert runs_of(tracer.trace_of(optimizer)) == (RateRun(1, 2, 0.5, 0.25, 2),)


def test_the_own_count_of_an_optimizer_that_was_restored() -> None:
    model = torch.nn.Linear(3, 1)
    first, second = (torch.optim.Adam(model.parameters()) for _ in range(2))
    found = []
    first.state["of the program"] = {"step": "odd"}
    for optimizer, steps in ((first, 3), (second, 4), (copy.deepcopy(first), 5)):  # no gradients
        with tracer.record() as recording:
            optimizer.load_state_dict(first.state_dict())
            for _ in range(steps):
                step(model, optimizer)
        evidence = recording.trace().optimizers[0].evidence
        found.append([each for each in evidence if isinstance(each, Iterations)])
    assert found == [[], [Iterations(3, 7)], [Iterations(7, 7)]]


class Moved(torch.optim.SGD):  # type: ignore[misc]
    """Keeps the last move of each parameter as `step`."""

    @torch.no_grad()
    def step(self) -> None:
        for own in self.param_groups[0]["params"]:
            if own.grad is not None:
                own.add_(self.state[own].setdefault("step", -own.grad))


@pytest.mark.parametrize("cls", [torch.optim.Adam, Moved])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_what_a_parameter_keeps_as_its_step_is_no_count_of_the_optimizer(
    cls: Any, dtype: Any
) -> None:
    parameters = [torch.nn.Parameter(torch.ones(1, dtype=dtype)) for _ in range(2)]
    with tracer.record() as recording:
        optimizer = cls(parameters, lr=1.0)
        for own in parameters * 3:  # in turn
            optimizer.zero_grad()
            own.grad = torch.ones_like(own)
            optimizer.step()
    (read,) = recording.trace().optimizers
    assert recording.trace().updates() == 6 and recording.trace().complete
    assert not [each for each in read.evidence if isinstance(each, Iterations)]


def test_the_schedule_of_an_optimizer_without_a_step() -> None:
    with tracer.record() as recording:
        optimizer = torch.optim.SGD(torch.nn.Linear(3, 1).parameters(), 0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    assert schedule and "cheduled by StepLR." in said(recording.trace())
