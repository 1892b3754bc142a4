"""Learning rates, schedules and weight decay of PyTorch: public troubles, and what is fine.

Each program of `pains/rates` has a `train(healthy)` that returns whether the trouble is there.
"""

import json
import runpy
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.utils.prune
from support import forked
from support.findings_of import bad, found

import tracer
from tracer.model.rates import sentence
from tracer.model.records import RateRun
from tracer.model.summary import summaries_of
from tracer.model.trace import select
from tracer.reporters import formats
from tracer.reporters.text import render
from tracer.testing import expressions

PAINS = Path(__file__).parent / "pains" / "rates"
SAID = {
    "schedule_once_an_epoch": (
        "warning[schedule-pace]: CosineAnnealingLR is made for 40 steps, but stepped once in the "
        "40 steps of this run: the learning rate had 2 values (stepped in "
        "schedule_once_an_epoch.py:22)."
    ),
    "schedule_twice_a_step": (
        "warning[schedule-pace]: LinearLR is made for 20 steps, but stepped 38 times in the 20 "
        "steps of this run: the learning rate had 11 values (stepped in "
        "schedule_twice_a_step.py:23)."
    ),
    "schedule_and_scaler": (
        "warning[schedule-ahead]: LinearLR stepped 19 times in 20 steps, but the GradScaler "
        "skipped 4 of these (steps 5-8): the schedule is 4 steps ahead (stepped in "
        "schedule_and_scaler.py:27)."
    ),
    "rate_of_the_checkpoint": (
        "was made with the learning rate 1e-05, but used 0.1 from step 1 on: "
        "load_state_dict (rate_of_the_checkpoint.py:16) replaced it."
    ),
    "masked_gradients": (
        "warning[moved-without-gradient]: 11 of 24 elements of 0.weight moved in each of 20 "
        "updates, although the gradient there was always 0: weight decay moves weights without a "
        "gradient (stepped in masked_gradients.py:23)."
    ),
    "stopped_gradients": (
        "warning[moved-without-gradient]: 0.weight and 0.bias moved in each of 20 updates, "
        "although the gradient was always 0: weight decay moves weights without a gradient "
        "(stepped in stopped_gradients.py:23)."
    ),
    "norms_decay": (
        "weight decay 0.01 on 4 of 8 parameters, 2 of them one-dimensional "
        "(0.layer_norm.weight, 1.layer_norm.weight; AdamW was made in norms_decay.py:35)."
    ),
}
"""What stands on the first screen."""
WITH_EFFECTS = {"masked_gradients", "stopped_gradients"}


def test_each_program_has_its_row() -> None:
    assert {each.stem for each in PAINS.glob("*.py")} == SAID.keys()


@pytest.mark.parametrize("name", SAID)
def test_it_is_said_and_nothing_of_its_twin(name: str) -> None:
    train = runpy.run_path(str(PAINS / f"{name}.py"))["train"]
    for healthy in (False, True):
        with tracer.record(effects=name in WITH_EFFECTS) as recording:
            assert train(healthy) != healthy
        trace = recording.trace()
        assert trace.complete, trace.notes
        first = " ".join(" ".join(render(trace).split("\n")[:25]).split())
        first = first.replace(f"{PAINS}/", "").replace("tests/findings/pains/rates/", "")
        assert (SAID[name] in first) != healthy
        assert not bad(trace) or not healthy


def test_the_bits_are_those_of_an_untraced_run() -> None:
    def weights(traced: bool) -> Any:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        if traced:
            tracer.wrap(optimizer)
        for _ in range(5):
            step(model, optimizer, schedule)
        return model.weight.detach().clone(), schedule.last_epoch, optimizer.param_groups[0]["lr"]

    (one, *ones), (other, *others) = weights(False), weights(True)
    assert torch.equal(one, other)
    assert ones == others


@pytest.mark.sweep
@pytest.mark.parametrize("name", SAID)
def test_the_first_screen_of_a_run(name: str, tmp_path: Path) -> None:
    options = ["--effects"] * (name in WITH_EFFECTS)
    done = forked.run(["tracer", "run", *options, str(PAINS / f"{name}.py")], tmp_path, {})
    first = " ".join(" ".join(done.stderr.split("\n")[:25]).split())
    assert SAID[name].partition(" (")[0] in first


def test_an_expected_rate_tells_what_a_load_replaced() -> None:
    train = runpy.run_path(str(PAINS / "rate_of_the_checkpoint.py"))["train"]
    for healthy in (True, False):
        with tracer.record() as recording:
            train(healthy)
        (verdict,) = expressions.check(recording.trace(), [expressions.read("rate=1e-5")])
        wrong = ["SGD: it is 0.1 in step 1", "SGD#2: it is 0.1 in steps 1-20"]
        assert verdict.reason.split("\n") == wrong[: 1 if healthy else 2]


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
        assert "LinearLR (made for 20) stepped 4 times between 5 steps" in said(recording.trace())


def test_a_rate_in_a_tensor_is_read() -> None:
    model = torch.nn.Linear(3, 1)
    rate = torch.tensor(0.5)
    optimizer = tracer.wrap(torch.optim.Adam(model.parameters(), rate, foreach=False))
    step(model, optimizer)
    rate.fill_(0.25)
    step(model, optimizer)
    assert runs_of(tracer.trace_of(optimizer)) == (RateRun(1, 2, 0.5, 0.25, 2),)


def test_part_of_a_trace_has_the_rates_that_it_knows() -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = tracer.wrap(torch.optim.SGD(model.parameters(), 0.1, weight_decay=0.5))
    for number in range(6):
        optimizer.param_groups[0]["lr"] = 0.1 if number < 3 else 0.01
        step(model, optimizer)
    trace = tracer.trace_of(optimizer)
    part = select(trace, steps=range(3, 6))
    assert runs_of(part) == (RateRun(1, 1, 0.1, 0.1), RateRun(2, 2, 0.01, 0.01))
    assert runs_of(part, "decay") == (RateRun(1, 3, 0.5, 0.5),)


# What is as it should be; `fuzz/healthy_torch.py` draws schedules and groups that are usual.

HEALTHY: list[Callable[[Any, list[Any]], None]] = []


def healthy(train: Callable[[Any, list[Any]], None]) -> Callable[[Any, list[Any]], None]:
    HEALTHY.append(train)
    return train


@healthy
def warm_restarts(model: Any, parameters: list[Any]) -> None:
    optimizer = torch.optim.SGD(parameters, 0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=5)
    for _ in range(20):
        step(model, optimizer, schedule)


@healthy
def a_run_that_ended_early(model: Any, parameters: list[Any]) -> None:
    optimizer = torch.optim.SGD(parameters, 0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=1000)
    for _ in range(20):
        step(model, optimizer, schedule)


@healthy
def a_run_that_goes_on(model: Any, parameters: list[Any]) -> None:
    states: list[Any] = []
    for _ in range(2):
        optimizer = torch.optim.Adam(parameters, 0.1)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, 1.0, total_iters=12)
        if states:
            optimizer.load_state_dict(states[0])
            schedule.load_state_dict(states[1])
        for _ in range(6):
            step(model, optimizer, schedule)
        states = [optimizer.state_dict(), schedule.state_dict()]


@healthy
def a_run_that_goes_on_with_a_rate_that_went_down(model: Any, parameters: list[Any]) -> None:
    optimizer = torch.optim.SGD(parameters, 0.1)
    step(model, optimizer)
    optimizer.param_groups[0]["lr"] = 0.01
    saved = optimizer.state_dict()
    optimizer = torch.optim.SGD(parameters, 0.1)
    optimizer.load_state_dict(saved)
    step(model, optimizer)


@healthy
def a_warm_run_that_goes_on_with_rates_set_by_hand(model: Any, parameters: list[Any]) -> None:
    saved: Any = None
    for begin in (0, 10):
        optimizer = torch.optim.SGD(parameters, 1e-5)
        if saved:
            optimizer.load_state_dict(saved)
        for number in range(begin, begin + 10):
            optimizer.param_groups[0]["lr"] = 1e-5 + 0.01 * min(1, number / 5)
            step(model, optimizer)
        saved = optimizer.state_dict()


@healthy
def a_schedule_that_is_made_after_the_load(model: Any, parameters: list[Any]) -> None:
    one_cycle = torch.optim.lr_scheduler.OneCycleLR
    optimizer = torch.optim.SGD(parameters, 1e-3)
    schedule = one_cycle(optimizer, 0.01, total_steps=20)
    for _ in range(6):
        step(model, optimizer, schedule)
    saved, last = optimizer.state_dict(), schedule.last_epoch
    optimizer = torch.optim.SGD(parameters, 1e-3)
    optimizer.load_state_dict(saved)
    schedule = one_cycle(optimizer, 0.01, total_steps=20, last_epoch=last - 1)
    for _ in range(6):
        step(model, optimizer, schedule)


@healthy
def a_scaler_that_finds_its_scale(model: Any, parameters: list[Any]) -> None:
    optimizer = torch.optim.SGD(parameters, 0.1)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=30)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for number in range(30):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 3)).square().mean()
        scaler.scale(loss * (float("inf") if number < 2 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()


@healthy
def an_input_that_is_always_zero(model: Any, parameters: list[Any]) -> None:
    optimizer = torch.optim.AdamW(parameters, 0.1, weight_decay=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.rand(4, 3) * torch.tensor([1.0, 0.0, 1.0])).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()


@healthy
def words_that_do_not_come(model: Any, parameters: list[Any]) -> None:
    words = torch.nn.Embedding(9, 3)
    optimizer = torch.optim.AdamW([*words.parameters(), *parameters], 0.1, weight_decay=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        model(words(torch.tensor([1, 2, 5]))).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(words.parameters(), 1.0)
        optimizer.step()


@healthy
def a_mask_in_the_model(model: Any, parameters: list[Any]) -> None:
    torch.nn.utils.prune.random_unstructured(model[0], "weight", 0.5)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1, weight_decay=0.1)
    for _ in range(6):
        step(model, optimizer)


@healthy
def a_mask_in_the_model_and_clipped_gradients(model: Any, parameters: list[Any]) -> None:
    """Clipping writes to the gradients, which are 0 since the backward pass."""
    torch.nn.utils.prune.random_unstructured(model[0], "weight", 0.5)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1, weight_decay=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.ones(4, 3)).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


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
    assert not found(recording.trace(), "decay-of-norms")


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
