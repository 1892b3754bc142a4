"""Learning rates, schedules and weight decay of PyTorch, and steps that clear their gradients."""

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.utils.prune
from support.findings_of import bad

import tracer
from tracer.model.rates import sentence
from tracer.model.records import RateRun
from tracer.model.summary import summaries_of
from tracer.reporters import formats
from tracer.reporters.text import render

# What is known of a rate.


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


def in_steps(runs: tuple[RateRun, ...], steps: int) -> list[float]:
    """The rate in each step, of those that did not move or moved by one value a step."""
    values = dict[int, float]()
    for each in runs:
        values[each.first] = each.value
        values[each.first + each.count - 1] = each.last
        if each.values == 1:
            values |= dict.fromkeys(range(each.first, each.first + each.count), each.value)
    return [values.get(number, -1.0) for number in range(1, steps + 1)]


@pytest.mark.parametrize(
    "rates",
    [
        [0.1] * 6,
        [0.1, 0.1, 0.1, 0.01, 0.01, 0.01],
        [0.1, 0.2, 0.3, 0.2, 0.1, 0.0],
        [0.1, 0.2, 0.3, 0.3, 0.3, 0.1],
        [0.1, 0.1, 0.2, 0.3, 0.4, 0.4],
        [0.3, 0.2, 0.1, 0.3, 0.2, 0.1],
    ],
)
def test_runs_are_what_the_steps_used(rates: list[float]) -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = tracer.wrap(torch.optim.SGD(model.parameters(), 1.0))
    for rate in rates:
        optimizer.param_groups[0]["lr"] = rate
        step(model, optimizer)
    runs = runs_of(tracer.trace_of(optimizer))
    assert sum(each.count for each in runs) == len(rates)
    seen = in_steps(runs, len(rates))
    assert all(one in (-1.0, rate) for one, rate in zip(seen, rates, strict=True))
    changes = sum(one != other for one, other in pairwise(rates))
    assert f"({changes + 1} values)" in said(tracer.trace_of(optimizer)) or not changes


def said(trace: Any) -> str:
    return sentence(summaries_of(trace)[0])


def test_a_million_values_are_one_run() -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = tracer.wrap(torch.optim.SGD(model.parameters(), 1.0))
    for number in range(300):
        optimizer.param_groups[0]["lr"] = 1 / (number + 1)
        step(model, optimizer)
    (run,) = runs_of(tracer.trace_of(optimizer))
    assert run == RateRun(1, 300, 1.0, 1 / 300, 300)


def test_a_rate_that_jumps_all_the_time_takes_no_more_than_some_runs() -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = tracer.wrap(torch.optim.SGD(model.parameters(), 1.0))
    for number in range(300):
        optimizer.param_groups[0]["lr"] = (0.1, 0.1, 0.2, 0.2)[number % 4]
        step(model, optimizer)
    runs = runs_of(tracer.trace_of(optimizer))
    assert len(runs) <= 52
    assert sum(each.count for each in runs) == 300


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


def test_a_rate_in_a_tensor_is_read() -> None:
    model = torch.nn.Linear(3, 1)
    rate = torch.tensor(0.5)
    optimizer = tracer.wrap(torch.optim.Adam(model.parameters(), rate, foreach=False))
    step(model, optimizer)
    rate.fill_(0.25)
    step(model, optimizer)
    assert runs_of(tracer.trace_of(optimizer)) == (RateRun(1, 2, 0.5, 0.25, 2),)


# What is as it should be; `fuzz/healthy_torch.py` draws schedules and groups that are usual.

HEALTHY: list[Callable[[Any, list[Any]], None]] = []


def healthy(train: Callable[[Any, list[Any]], None]) -> Callable[[Any, list[Any]], None]:
    HEALTHY.append(train)
    return train


class Clearing(torch.optim.SGD):  # type: ignore[misc]
    """Its step clears the gradients that it has used."""

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        self.zero_grad(set_to_none=False)
        return loss


def step_with_a_closure(model: Any, optimizer: Any) -> None:
    def closure() -> Any:
        loss = model(torch.randn(4, 3)).square().mean()
        loss.backward()
        return loss

    for _ in range(6):
        optimizer.step(closure)


@healthy
def a_step_that_clears_the_gradients_of_its_closure(model: Any, parameters: list[Any]) -> None:
    optimizer = Clearing(parameters, 0.1)
    step_with_a_closure(model, optimizer)


@healthy
def a_step_that_clears_the_gradients_of_a_scaler(model: Any, parameters: list[Any]) -> None:
    optimizer = Clearing(parameters, 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    for _ in range(6):
        scaler.scale(model(torch.randn(4, 3)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()


@healthy
def a_hook_that_clears_the_gradients_of_a_closure(model: Any, parameters: list[Any]) -> None:
    optimizer = torch.optim.SGD(parameters, 0.1)
    optimizer.register_step_post_hook(lambda own, *_: own.zero_grad(set_to_none=False))
    step_with_a_closure(model, optimizer)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("train", HEALTHY, ids=lambda each: each.__name__)
def test_nothing_is_said(train: Callable[[Any, list[Any]], None]) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2), torch.nn.Linear(2, 3))
    with tracer.record(effects=True) as recording:
        train(model, list(model.parameters()))
    assert recording.trace().complete
    assert not bad(recording.trace())


def test_every_report_has_them() -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = tracer.wrap(torch.optim.SGD(model.parameters(), 0.5, weight_decay=0.5))
    for rate in (0.5, 0.25):
        optimizer.param_groups[0]["lr"] = rate
        step(model, optimizer)
    trace = tracer.trace_of(optimizer)
    line = "Learning rate 0.5 -> 0.25 (2 values); weight decay 0.5 on all 2 parameters."
    assert said(trace) == line
    assert line in render(trace)
    pages = [formats.render(trace, each) for each in ("markdown", "html")]
    assert all(line.partition(">")[2] in page for page in pages)
    (own,) = json.loads(formats.render(trace, "json"))["optimizers"]
    assert own["rates"][0] == {
        "what": "rate",
        "group": 0,
        "schedule": "",
        "variables": ["weight", "bias"],
        "runs": [{"first": 1, "count": 2, "value": 0.5, "last": 0.25, "values": 2}],
    }
