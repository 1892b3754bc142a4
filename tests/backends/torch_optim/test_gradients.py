"""What becomes of gradients: healthy loops in unusual styles, of which nothing is said, and others.

The usual ones are drawn by `fuzz/healthy_torch.py`.
"""

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.findings_of import bad
from support.torch_bytes import Waits
from torch import nn
from torch.nn.utils import clip_grad_norm_

import tracer
from tracer.backends.torch import compat, gradients
from tracer.model.evidence import BackwardPasses, NoStep
from tracer.model.trace import Trace

torch.set_num_threads(1)
SGD = torch.optim.SGD
HEALTHY: dict[str, Callable[[], None]] = {}


def healthy(train: Callable[[], None]) -> Callable[[], None]:
    HEALTHY[train.__name__] = train
    return train


def net() -> Any:
    return nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1))


def made(rate: float = 0.1) -> tuple[Any, Any]:
    """A model and its optimizer."""
    model = net()
    return model, SGD(model.parameters(), rate)


def loss_of(model: Any) -> Any:
    return (model(torch.randn(4, 3)) ** 2).mean()


@healthy
def one_pass_a_step() -> None:
    model, optimizer = made()
    for number in range(12):
        optimizer.zero_grad(set_to_none=number % 2 == 0)
        loss_of(model).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@healthy
def a_hook_that_clears_what_the_step_used() -> None:
    """In more steps than values of gradients are asked for."""
    model, optimizer = made()
    optimizer.register_step_post_hook(lambda own, *_: own.zero_grad(set_to_none=False))
    for _ in range(3 * gradients.READ_STEPS):
        loss_of(model).backward()
        optimizer.step()


@healthy
def accumulation_with_a_last_group() -> None:
    model, optimizer = made()
    for _ in range(3):
        for number in range(1, 11):
            loss_of(model).backward()
            if number % 4 == 0 or number == 10:
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)


@healthy
def gan_with_two_passes_of_the_judge() -> None:
    draw, judge = nn.Linear(2, 3), nn.Linear(3, 1)
    of_draw, of_judge = SGD(draw.parameters(), 0.1), SGD(judge.parameters(), 0.1)
    for _ in range(8):
        of_judge.zero_grad()
        judge(torch.randn(4, 3)).mean().backward()
        (-judge(draw(torch.randn(4, 2)).detach())).mean().backward()
        of_judge.step()
        of_draw.zero_grad()
        judge(draw(torch.randn(4, 2))).mean().backward()
        of_draw.step()


@healthy
def shared_parameters_in_turns() -> None:
    model = net()
    optimizers = SGD(model.parameters(), 0.1), torch.optim.Adam(model.parameters())
    for _ in range(8):
        for each in optimizers:
            loss_of(model).backward()
            each.step()
        model.zero_grad()


@healthy
def sharpness_aware() -> None:
    model, optimizer = made()
    for _ in range(6):
        for first in (True, False):
            optimizer.zero_grad()
            loss_of(model).backward()
            if first:
                up = [each.grad.clone() * 0.05 for each in model.parameters()]
                with torch.no_grad():
                    torch._foreach_add_(list(model.parameters()), up)
        with torch.no_grad():
            torch._foreach_sub_(list(model.parameters()), up)
        optimizer.step()


@healthy
def gradients_that_are_put_together_by_the_program() -> None:
    """As where those of several tasks are in conflict."""
    for copies in (False, True):
        model, optimizer = made()
        for _ in range(6):
            found = []
            for _ in range(3):
                optimizer.zero_grad()
                loss_of(model).backward()
                found.append([each.grad.clone() for each in model.parameters()])
            for own, *tasks in zip(model.parameters(), *found, strict=True):
                own.grad = own.grad.copy_(sum(tasks)) if copies else sum(tasks)
            optimizer.step()


@healthy
def passes_for_an_evaluation() -> None:
    model, optimizer = made()
    for number in range(12):
        optimizer.zero_grad()
        loss_of(model).backward()
        loss_of(model).backward()
        optimizer.step()
        if number % 4 == 3:  # the saliency of an input
            x = torch.randn(1, 3, requires_grad=True)
            optimizer.zero_grad()
            model(x).sum().backward()


@healthy
def losses_that_are_not_finite_are_left_out() -> None:
    model, optimizer = made()
    for number in range(12):
        optimizer.zero_grad()
        loss_of(model).backward()
        if number % 5:
            optimizer.step()


@healthy
def a_pass_that_raises() -> None:
    model, optimizer = made()
    for number in range(8):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        if number == 3:
            with pytest.raises(RuntimeError, match="backward through the graph a second time"):
                loss.backward()
        optimizer.step()


@healthy
def a_step_in_the_pass() -> None:
    model = net()
    optimizers = {each: SGD([each], 0.1) for each in model.parameters()}

    def hook(parameter: Any) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for each in model.parameters():
        each.register_post_accumulate_grad_hook(hook)
    for _ in range(6):
        loss_of(model).backward()


@healthy
def checkpoints_and_double_backward() -> None:
    from torch.utils.checkpoint import checkpoint

    model, optimizer = made()
    for _ in range(6):
        optimizer.zero_grad()
        x = torch.randn(4, 3, requires_grad=True)
        out = checkpoint(model, x, use_reentrant=True)
        out.mean().backward()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (slope**2).mean().backward()
        optimizer.step()


def said(train: Callable[[], None]) -> list[str]:
    gc.collect()  # models of other tests
    torch.manual_seed(1)
    with tracer.record() as recording:
        train()
    trace = recording.trace()
    assert trace.complete, trace.notes
    return [f"{each.code}: {each.text}" for each in bad(trace)]


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_said(name: str) -> None:
    assert not said(HEALTHY[name])


def test_gradients_that_a_custom_step_keeps_for_the_next_call_were_not_used() -> None:
    class Accumulating(torch.optim.SGD):  # type: ignore[misc]
        calls = 0

        def step(self, closure: Any = None) -> Any:
            self.calls += 1
            return super().step(closure) if self.calls % 2 else None

    model = net()
    optimizer = Accumulating(model.parameters(), 0.1)
    with tracer.record() as recording:
        for number in range(9):
            loss_of(model).backward()
            optimizer.step()
            if number % 2 == 0:
                optimizer.zero_grad()
    assert not recording.trace().complete and not recording.trace().findings()


def test_a_zero_grad_that_was_forgotten_with_a_step_by_that_of_the_base_class() -> None:
    """Also after a plain optimizer, whose sites such a step has, too."""

    class Derived(torch.optim.SGD):  # type: ignore[misc]
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    for kind in (SGD, Derived):
        model = net()
        with tracer.record() as recording:
            optimizer = kind(model.parameters(), 0.001)
            for _ in range(30):
                loss_of(model).backward()
                optimizer.step()
        assert [each.code for each in recording.trace().findings()] == ["gradients-added"]


def test_nothing_of_pytorch_stays_ours() -> None:
    before = torch.autograd.backward
    with tracer.record():
        now = torch.autograd.backward
        with tracer.record():
            one_pass_a_step()
        assert now is torch.autograd.backward is not before
    assert before is torch.autograd.backward


@pytest.mark.parametrize("capturing", [False, True])
def test_nothing_is_asked_for_while_a_cuda_graph_is_made(
    capturing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat, "is_capturing", lambda: capturing, raising=False)
    model, optimizer = made()
    with Waits() as waits, tracer.record():
        for _ in range(4):
            loss_of(model).backward()
            optimizer.step()
    assert bool(waits.called) != capturing


def test_a_fault_of_a_monitor_is_none_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("no such thing")

    monkeypatch.setattr(gradients.GradientMonitor, "pass_ends", fail)
    assert not said(one_pass_a_step)


def passes_of(trace: Trace) -> list[int]:
    """The backward passes that the steps of each optimizer used, unless they are as many."""
    every = [evidence for optimizer in trace.optimizers for evidence in optimizer.evidence]
    return [each.passes for each in every if isinstance(each, BackwardPasses)]


STEPS = 12


def train_with(style: str) -> list[int]:
    """Train in a style; returns the passes that the steps used, unless they are as many."""
    model, judge = net(), nn.Linear(1, 1)
    optimizer, other = SGD(model.parameters(), 0.01), SGD(judge.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for number in range(STEPS):
        if style != "one group of four" or number % 4 == 0:
            optimizer.zero_grad(set_to_none=style != "zeros")
        loss = judge(model(torch.randn(4, 3))).mean()
        if style == "by hand":
            for each, own in zip(
                model.parameters(), torch.autograd.grad(loss, [*model.parameters()]), strict=True
            ):
                each.grad = own
        elif style != "no pass":
            scaler.scale(loss).backward()
        if style.startswith("two steps"):
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        if style != "one group of four" or number % 4 == 3:
            optimizer.step()
        if style == "two steps of two optimizers":
            other.zero_grad()
            judge(torch.ones(1, 1)).mean().backward()
            other.step()
            other.step()
    used = {"no pass": [0], "one group of four": [STEPS], "two steps": [STEPS]}
    return used.get(style, [STEPS, STEPS] if style.startswith("two steps") else [])


STYLES = ("zeros", "one group of four", "two steps", "two steps of two optimizers", "by hand")


@pytest.mark.parametrize("style", ["plain", "no pass", *STYLES])
def test_the_passes_that_steps_used(style: str) -> None:
    """In each of two recordings, the second of which has other optimizers, too."""
    for _ in range(2):
        with tracer.record() as recording:
            used = train_with(style)
        assert passes_of(recording.trace()) == used


def test_passes_that_do_not_reach_what_is_looked_at() -> None:
    """A head gets gradients in every other step, and keeps zeros in the others."""
    body, heads = nn.Linear(3, 4), [nn.Linear(4, 1), nn.Linear(4, 1)]
    optimizer = SGD(nn.ModuleList([body, *heads]).parameters(), 0.01)
    with tracer.record() as recording:
        for number in range(10):
            optimizer.zero_grad(set_to_none=False)
            heads[number % 2](body(torch.ones(2, 3))).mean().backward()
            optimizer.step()
    assert passes_of(recording.trace()) == []


@pytest.mark.parametrize("updated", ["not", "by another", "in place", "no gradient"])
def test_an_optimizer_that_never_steps_though_gradients_came(updated: str) -> None:
    with tracer.record() as recording:
        model, other = net(), net()
        every = [SGD(each.parameters(), 0.1) for each in (model, model, net()[0])]
        for number in range(150):
            every[0].zero_grad()
            loss_of(other if updated == "no gradient" else model).backward()
            if updated == "by another" and number > 75:
                every[1].step()
            for each in model.parameters() if updated == "in place" and number > 75 else ():
                with torch.no_grad():
                    each -= 0.1 * each.grad
        del model, other
    optimizers = recording.trace().optimizers
    said = [each for one in optimizers for each in one.evidence if isinstance(each, NoStep)]
    assert [each.why for each in said] == ["gradients came"] * (2 if updated == "not" else 0)


def test_the_passes_of_another_recording_are_not_of_this_one() -> None:
    model, optimizer = made(0.01)
    for steps in (3, 5):
        with tracer.record() as recording:
            for _ in range(steps):
                optimizer.zero_grad()
                loss_of(model).backward()
                loss_of(model).backward()
                optimizer.step()
        assert passes_of(recording.trace()) == [2 * steps]


def test_stray_gradients_of_another_loss() -> None:
    """The pass of a generator reaches its judge, which clears too late; then also in time."""
    for clears in (True, False):
        draw, judge = nn.Linear(2, 3), nn.Linear(3, 1)
        with tracer.record() as recording:
            of_draw, of_judge = SGD(draw.parameters(), 0.01), SGD(judge.parameters(), 0.01)
            for _ in range(8):
                fake = draw(torch.randn(4, 2))
                judge(fake).mean().backward()
                of_draw.step()
                of_draw.zero_grad()
                if clears:
                    of_judge.zero_grad()
                (judge(torch.randn(4, 3)) - judge(fake.detach())).mean().backward()
                of_judge.step()
                of_judge.zero_grad()
        assert passes_of(recording.trace()) == ([] if clears else [16])


class Meeting(torch.autograd.Function):  # type: ignore[misc]
    """In whose backward pass two threads wait for each other."""

    barrier = threading.Barrier(2)

    @staticmethod
    def forward(context: Any, value: Any) -> Any:
        return value.clone()

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        Meeting.barrier.wait(60)
        return gradient


@pytest.mark.parametrize("clears", [True, False])
def test_two_threads_whose_passes_overlap(clears: bool) -> None:
    def train() -> None:
        model, optimizer = made(0.01)
        for _ in range(10):
            if clears:
                optimizer.zero_grad()
            Meeting.apply(loss_of(model)).backward()
            optimizer.step()

    def both() -> None:
        other = threading.Thread(target=train)
        other.start()
        train()
        other.join()

    added = [text for text in said(both) if "In 9 of 10 steps" in text]
    assert len(added) == (0 if clears else 2)
