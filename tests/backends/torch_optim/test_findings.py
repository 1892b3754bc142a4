"""What is found of PyTorch's own optimizers: a program for each rule that can find anything there.

Each has a twin that is much alike and fine; the weights say which of both it is, where they can.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.findings_of import bad, check, of_workers, traced
from support.rules_by_backend import rules_of

import tracer

torch.set_num_threads(1)
PROGRAMS: dict[str, Callable[[bool], None]] = {}
SGD = torch.optim.SGD


def program(train: Callable[[bool], None]) -> Callable[[bool], None]:
    """`train(healthy)`, which the rule of that name is about."""
    PROGRAMS[train.__name__.replace("_", "-")] = train
    return train


def net() -> Any:
    """Two layers."""
    return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))


def step(optimizer: Any, model: Any, *, to_none: bool = True, factor: float = 1.0) -> None:
    """One batch."""
    optimizer.zero_grad(set_to_none=to_none)
    (factor * model(torch.ones(4, 3)) ** 2).mean().backward()
    optimizer.step()


def weights(*layers: Any) -> list[Any]:
    """What their parameters hold."""
    return [p.detach().clone() for layer in layers for p in layer.parameters()]


def same(before: list[Any], *layers: Any) -> bool:
    """Whether their parameters hold it still."""
    return all(map(torch.equal, before, weights(*layers)))


@program
def never_passed(healthy: bool) -> None:
    model = net()
    model[0].requires_grad_(False)
    optimizer = SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    before = weights(model[0])
    for epoch in range(6):
        if epoch == 3:
            model[0].requires_grad_(True)
            if healthy:
                optimizer.add_param_group({"params": model[0].parameters()})
        step(optimizer, model)
    assert same(before, model[0]) != healthy


@program
def frozen_but_updated(healthy: bool) -> None:
    model = net()
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(3):
        step(optimizer, model)
    model[0].requires_grad_(False)
    before = weights(model[0])
    for _ in range(3):
        step(optimizer, model, to_none=healthy)
    assert same(before, model[0]) == healthy


@program
def optimizer_renewed(healthy: bool) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(4):
        if not healthy:
            optimizer = torch.optim.Adam(model.parameters())
        step(optimizer, model)
        step(optimizer, model)


@program
def no_gradient(healthy: bool) -> None:
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        hidden = model[0](torch.ones(4, 3))
        model[1](hidden if healthy else hidden.detach()).mean().backward()
        optimizer.step()


@program
def updates_stopped(healthy: bool) -> None:
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    for number in range(12):
        optimizer.zero_grad()
        hidden = model[0](torch.ones(4, 3))
        model[1](hidden if healthy or number < 4 else hidden.detach()).mean().backward()
        optimizer.step()


@program
def gradient_missing(healthy: bool) -> None:
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    for number in range(12):
        optimizer.zero_grad()
        hidden = model[0](torch.ones(4, 3))
        model[1](hidden if healthy or number % 2 else hidden.detach()).mean().backward()
        optimizer.step()


@program
def updated_twice(healthy: bool) -> None:
    class Mine(torch.optim.SGD):  # type: ignore[misc]
        def step(self, closure: Any = None) -> Any:
            if not healthy:
                super().step(closure)
            return super().step(closure)

    model = net()
    optimizer = Mine(model.parameters(), 0.1)
    for _ in range(3):
        step(optimizer, model)


def scaled(healthy: bool, only_in: range) -> None:
    """Steps of a scaler, in some of which the second layer has a gradient that is infinite."""
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for number in range(6):
        optimizer.zero_grad()
        loss = model[0](torch.ones(4, 3)).mean()
        if number in only_in:
            loss = loss + model[1](torch.ones(4, 2) * (1.0 if healthy else torch.inf)).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@program
def steps_skipped(healthy: bool) -> None:
    scaled(healthy, range(6))


@program
def never_updated(healthy: bool) -> None:
    scaled(healthy, range(2))


@program
def unchanged(healthy: bool) -> None:
    model = net().bfloat16()  # of which 8 bits are the number
    optimizer = SGD(model.parameters(), 0.5 if healthy else 1e-8)
    before = weights(model)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(4, 3, dtype=torch.bfloat16)).mean().backward()
        optimizer.step()
    assert same(before, model) != healthy


@program
def not_finite(healthy: bool) -> None:
    model = net()
    optimizer = SGD(model.parameters(), 0.01)
    for number in range(4):
        step(optimizer, model, factor=1.0 if healthy or number < 2 else float("inf"))
    assert all(each.isfinite().all() for each in weights(model)) == healthy


ELSEWHERE = {"replicas-disagree", "gradients-left", "gradients-added"}
"""Below, and in `test_pains.py`."""


def test_each_rule_of_the_table_has_a_program() -> None:
    assert rules_of("torch.optim") - PROGRAMS.keys() == ELSEWHERE
    assert PROGRAMS.keys() <= rules_of("torch.optim")


@pytest.mark.parametrize("code", sorted(PROGRAMS))
def test_it_is_said_and_nothing_of_its_twin(code: str) -> None:
    if code == "never-updated":  # of which the twin misses a gradient in most steps, and stops
        assert code not in {each.code for each in traced(PROGRAMS[code], True).findings()}
        finding = next(e for e in traced(PROGRAMS[code], False).findings() if e.code == code)
    else:
        finding = check(code, PROGRAMS[code])
    said = finding.text + finding.advice
    words = ("tf.", "GradientTape", "TensorFlow", "graph", "apply_gradients", "compile")
    assert not any(word in said for word in words), said
    if finding.variables:
        assert {each.partition(".")[0] for each in finding.variables} <= {
            "0",
            "1",
            "weight",
            "bias",
        }


def test_ranks_that_did_not_do_the_same() -> None:
    def train(steps: int) -> None:
        model = net()
        optimizer = SGD(model.parameters(), 0.1)
        for _ in range(steps):
            step(optimizer, model)

    one, other = traced(lambda _: train(3), False), traced(lambda _: train(2), False)
    (finding,) = of_workers(one, other).findings()
    assert finding.code == "replicas-disagree"
    assert not of_workers(one, one).findings()


def found(train: Callable[[], Any]) -> set[str]:
    """The codes of the errors and warnings of a program."""
    with tracer.record() as recording:
        train()
    return {each.code for each in bad(recording.trace())}


class Listed(torch.nn.Module):  # type: ignore[misc]
    """A model that keeps its layers in a plain list, which hides them from PyTorch; or not."""

    def __init__(self, healthy: bool) -> None:
        super().__init__()
        layers = [torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)]
        self.layers: Any = torch.nn.ModuleList(layers) if healthy else layers
        self.head = torch.nn.Linear(3, 1)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def layers_in_a_list(healthy: bool) -> tuple[Any, ...]:
    model = Listed(healthy)
    return SGD(model.parameters(), 0.1), model, model.layers[0], model.layers[1]


def a_head_alone(healthy: bool) -> tuple[Any, ...]:
    model = net()
    model[0].requires_grad_(not healthy)
    return SGD(model[1].parameters(), 0.1), model, *(() if healthy else (model[0],))


def a_model_made_anew(healthy: bool) -> tuple[Any, ...]:
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    model = model if healthy else net()
    return optimizer, model, model


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (layers_in_a_list, [f"layers[{n}].{of}" for n in (0, 1) for of in ("weight", "bias")]),
        (a_head_alone, ["0.weight", "0.bias"]),
        (a_model_made_anew, [f"Sequential.{n}.{of}" for n in (0, 1) for of in ("weight", "bias")]),
    ],
)
@pytest.mark.parametrize("cleared", ["by the optimizer", "by the model", "never"])
def test_what_gets_gradients_and_is_in_no_optimizer(make: Any, names: Any, cleared: str) -> None:
    for healthy in (False, True):
        with tracer.record() as recording:
            optimizer, model, *left = make(healthy)
            before = weights(*left)
            for _ in range(4):
                if cleared != "never":
                    (optimizer if cleared == "by the optimizer" else model).zero_grad()
                (model(torch.ones(4, 3)) ** 2).mean().backward()
                optimizer.step()
            assert same(before, *left) != healthy or not left
            gone = [p.grad for layer in left for p in layer.parameters() if p.grad is None]
            assert not gone
            del optimizer, model, left
        found_of = {each.code: each for each in recording.trace().findings()}
        assert ("never-passed" in found_of) != healthy
        if not healthy:
            assert list(found_of["never-passed"].variables) == names
            assert found_of["never-passed"].severity == "warning"


@pytest.mark.parametrize("healthy", [False, True])
def test_the_optimizer_of_a_generator_with_the_parameters_of_its_judge(healthy: bool) -> None:
    draw, judge = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
    of_draw = torch.optim.Adam((draw if healthy else judge).parameters())
    of_judge = torch.optim.Adam(judge.parameters())
    before = weights(draw)

    def train() -> None:
        for _ in range(4):
            of_judge.zero_grad()
            (judge(torch.ones(4, 3)) - judge(draw(torch.ones(4, 2)))).mean().backward()
            of_judge.step()
            of_draw.zero_grad()
            judge(draw(torch.ones(4, 2))).mean().backward()
            of_draw.step()

    assert found(train) == (set() if healthy else {"never-passed"})
    assert same(before, draw) != healthy


def test_gradients_that_nobody_needs_are_fine() -> None:
    """Those of a judge that is not frozen, where an image is trained or another model."""
    judge, draw = net(), torch.nn.Linear(2, 3)
    image = torch.nn.Parameter(torch.ones(4, 3))

    def train() -> None:
        for optimizer in (SGD([image], 0.1), SGD(draw.parameters(), 0.1)):
            for _ in range(4):
                optimizer.zero_grad()
                judge(image + draw(torch.ones(4, 2))).mean().backward()
                optimizer.step()

    assert not found(train)


@pytest.mark.parametrize("healthy", [False, True])
def test_an_optimizer_that_is_stepped_for_its_schedule_only(healthy: bool) -> None:
    """Another one trains with its rate; unless that one's model is in no optimizer."""

    def train() -> None:
        model = net()
        optimizer = torch.optim.Adam((model if healthy else model[1]).parameters(), 0.1)
        clock = SGD([torch.nn.Parameter(torch.zeros(1))], 1.0)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(clock, T_max=12)
        for _ in range(12):
            optimizer.param_groups[0]["lr"] = 0.1 * clock.param_groups[0]["lr"]
            step(optimizer, model)
            clock.step()
            schedule.step()

    assert found(train) == (set() if healthy else {"no-gradient", "never-passed"})


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


def test_steps_without_any_gradient_are_not_what_the_code_decides() -> None:
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with tracer.record() as recording:
        for _ in range(3):
            optimizer.step()
    assert "no-gradient" in {finding.code for finding in recording.trace().findings()}


@pytest.mark.parametrize("healthy", [False, True])
def test_what_stands_still_after_nan_is_no_matter_of_its_own(healthy: bool) -> None:
    """Where the gradients are 0 from then on; without NaN, or before it, that is reported."""
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with tracer.record(effects=True) as recording:
        for number in range(12):
            optimizer.zero_grad()
            (model(torch.ones(4, 3)) ** 2).mean().backward()
            if number == 3 and not healthy:
                model[0].weight.grad.fill_(torch.nan)
            for each in model.parameters() if number > 3 else ():
                each.grad.zero_()
            model[1].bias.grad.zero_()
            before = weights(model)
            optimizer.step()
        assert all(map(torch.equal, before[1:], weights(model)[1:]))  # the last one
    said = [(each.code, each.variables) for each in recording.trace().findings()]
    if healthy:
        stopped = ("unchanged", ("0.weight", "0.bias", "1.weight"))
        assert said == [stopped, ("unchanged", ("1.bias",))]
    else:
        assert said == [("not-finite", ("0.weight",)), ("unchanged", ("1.bias",))]
        text = recording.trace().findings()[1].text
        assert "1.bias was updated in 3 steps before step 4, which made a weight infinite" in text


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


def test_what_is_unfrozen_without_a_part_in_the_loss_is_fine() -> None:
    model = net()
    model[0].requires_grad_(False)
    optimizer = SGD(model[1].parameters(), 0.1)

    def train() -> None:
        step(optimizer, model)
        model[0].requires_grad_(True)
        for _ in range(3):
            optimizer.zero_grad()
            model[1](torch.ones(4, 2)).mean().backward()
            optimizer.step()

    assert not found(train)


def test_a_critic_that_is_frozen_for_the_generator() -> None:
    draw, judge = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)
    both = torch.nn.Sequential(draw, judge)
    of_draw, of_judge = (torch.optim.Adam(each.parameters()) for each in (draw, judge))

    def train() -> None:
        for _ in range(4):
            judge.requires_grad_(False)
            step(of_draw, both)
            judge.requires_grad_(True)
            step(of_judge, judge)

    assert not found(train)


@pytest.mark.parametrize("renewed", ["with its state", "with new weights", "with other weights"])
def test_optimizers_in_a_row_that_are_fine(renewed: str) -> None:
    def train() -> None:
        model = net()
        begin = {name: each.clone() for name, each in model.state_dict().items()}
        state = None
        for _ in range(4):
            if renewed == "with other weights":
                model = net()
            optimizer = torch.optim.Adam(model.parameters())
            if renewed == "with its state" and state is not None:
                optimizer.load_state_dict(state)
            if renewed == "with new weights":  # as the folds of a validation begin
                model.load_state_dict(begin)
            step(optimizer, model)
            step(optimizer, model)
            state = optimizer.state_dict()

    assert not found(train)


def test_a_model_that_is_gone_by_the_time_of_reading() -> None:
    optimizers: list[Any] = []

    def train() -> None:
        model = net()
        model[0].requires_grad_(False)
        optimizers.append(tracer.wrap(SGD(model[1].parameters(), 0.1)))
        for number in range(4):
            model[0].requires_grad_(number > 1)
            step(optimizers[0], model)

    train()
    (finding,) = tracer.trace_of(optimizers[0]).findings()
    assert finding.code == "never-passed"
    assert finding.variables == ("0.weight", "0.bias")


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
    (names,) = {each.never_passed for each in recording.trace().data.optimizers} - {()}
    assert names == ("head.weight", "head.bias")
