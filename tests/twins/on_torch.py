"""Troubles with PyTorch's own optimizers: of each rule, and those people asked about in public.

A program prints its loss, which must be the same without the tracer.
"""

from typing import Any

import torch
from torch import nn
from twins.table import fine, rule, twin

torch.set_num_threads(1)
SGD = torch.optim.SGD


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


@twin("never-passed", others=None, variables=("0.weight", "0.bias"))
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


@rule
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


@rule
def optimizer_renewed(healthy: bool) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(4):
        if not healthy:
            optimizer = torch.optim.Adam(model.parameters())
        step(optimizer, model)
        step(optimizer, model)


def detached(in_steps: range) -> None:
    """12 steps, in some of which the first layer is cut off."""
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    for number in range(12):
        optimizer.zero_grad()
        hidden = model[0](torch.ones(4, 3))
        model[1](hidden.detach() if number in in_steps else hidden).mean().backward()
        optimizer.step()


@rule
def no_gradient(healthy: bool) -> None:
    detached(range(0 if healthy else 12))


@rule
def updates_stopped(healthy: bool) -> None:
    detached(range(12 if healthy else 4, 12))


@twin("no-gradient", "had no gradient (None) in", others=None)
def gradient_missing(healthy: bool) -> None:
    detached(range(0, 0 if healthy else 12, 2))


@rule
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


@rule
def steps_skipped(healthy: bool) -> None:
    scaled(healthy, range(6))


@rule
def never_updated(healthy: bool) -> None:
    scaled(healthy, range(6 if healthy else 2))


@rule
def unchanged(healthy: bool) -> None:
    model = net().bfloat16()  # of which 8 bits are the number
    optimizer = SGD(model.parameters(), 0.5 if healthy else 1e-8)
    before = weights(model)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(4, 3, dtype=torch.bfloat16)).mean().backward()
        optimizer.step()
    assert same(before, model) != healthy


@rule
def not_finite(healthy: bool) -> None:
    model = net()
    optimizer = SGD(model.parameters(), 0.01)
    for number in range(4):
        step(optimizer, model, factor=1.0 if healthy or number < 2 else float("inf"))
    assert all(each.isfinite().all() for each in weights(model)) == healthy


def train_on(model: Any, optimizer: Any) -> None:
    """Ten steps."""
    for _ in range(10):
        optimizer.zero_grad()
        loss = (model(torch.ones(8, 3)) ** 2).mean()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.6f}")


class Net(nn.Module):  # type: ignore[misc]
    """A body and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.head = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(x)))


class Listed(nn.Module):  # type: ignore[misc]
    """A model that keeps its layers in a plain list, which hides them from PyTorch; or not."""

    def __init__(self, healthy: bool) -> None:
        super().__init__()
        layers = [nn.Linear(3, 3) for _ in range(2)]
        self.hidden: Any = nn.ModuleList(layers) if healthy else layers
        self.head = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.hidden:
            x = torch.tanh(layer(x))
        return self.head(x)


@twin(
    "never-passed",
    "got gradients, but no optimizer has them",
    "was made in {here})",
    fix="Keep layers in torch.nn.ModuleList",
    variables=tuple(f"hidden[{n}].{of}" for n in (0, 1) for of in ("weight", "bias")),
    screen="sweep",
)
def layers_in_a_list(healthy: bool) -> bool:
    """Layers in a plain list, which `model.parameters()` does not know: they get gradients, and
    stay. Asked in pytorch 72580 and 59925.
    """
    torch.manual_seed(1)
    model = Listed(healthy)
    optimizer = SGD(model.parameters(), lr=0.1)  # here
    before = weights(model.hidden[0])
    train_on(model, optimizer)
    return same(before, model.hidden[0])


@twin(
    "never-passed",
    "got gradients, but no optimizer has them",
    "was made in {here})",
    variables=tuple(f"Net.{of}.{each}" for of in ("body", "head") for each in ("weight", "bias")),
    fix="Make the optimizer after the model",
    others=("no-gradient",),
    screen="sweep",
)
def model_made_again(healthy: bool) -> bool:
    """The model is made again after its optimizer, which goes on with the parameters of the first
    one. Asked in spro/practical-pytorch 9 and pytorch 14467.
    """
    torch.manual_seed(1)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)  # here
    model = model if healthy else Net()
    before = weights(model)
    train_on(model, optimizer)
    return same(before, model)


@twin(
    "gradients-left",
    "2 of 26 backward passes ({here}) were cleared or left",
    fix="Step once more after the last batch",
    screen="long",
)
def last_group_lost(healthy: bool) -> bool:
    """Gradients of four batches are accumulated, and an epoch has 13: the last is never applied.
    Asked in timoschick/pet 36 and ultralytics 11217.
    """
    torch.manual_seed(1)
    batches = torch.randn(12 if healthy else 13, 8, 3)
    model = nn.Linear(3, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        for number, batch in enumerate(batches, 1):
            loss = ((model(batch) - 1.0) ** 2).mean() / 4
            loss.backward()  # here
            if number % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
    print(f"loss {loss.item():.6f}")
    return model.bias.grad is not None


@twin(
    "gradients-added",
    "In 29 of 30 steps backward added to gradients that the previous step had used: zero_grad "
    "did not clear them.",
    fix="Call optimizer.zero_grad() once for each step",
    screen="sweep",
)
def zero_grad_forgotten(healthy: bool) -> bool:
    """Nobody calls `zero_grad`: each step is made with the sum of all gradients so far.
    Asked in pytorch 47175 and wenet-e2e/wekws 72.
    """
    torch.manual_seed(1)
    model, added = nn.Linear(3, 1), False
    optimizer = SGD(model.parameters(), lr=0.1)
    for batch in torch.randn(30, 8, 3):
        if healthy:
            optimizer.zero_grad()
        loss = (model(batch) ** 2).mean()
        (right,) = torch.autograd.grad(loss, [model.bias], retain_graph=True)
        loss.backward()
        added |= not torch.allclose(right, model.bias.grad)
        optimizer.step()  # here
    print(f"loss {loss.item():.6f}")
    return added


@twin(
    "gradients-left",
    "passes ({here}) were cleared or left",
    fix="call zero_grad once for each step",
    screen="sweep",
)
def zero_grad_in_each_micro_batch(healthy: bool) -> bool:
    """Gradients of four batches shall be accumulated, and `zero_grad` clears those of the first
    three. Asked in an issue of a repository that trains with accumulation (`RAE` 67).
    """
    torch.manual_seed(1)
    model, lost, whole = nn.Linear(3, 1), False, torch.zeros(1)
    optimizer = SGD(model.parameters(), lr=0.1)
    for number, batch in enumerate(torch.randn(40, 8, 3)):
        if number % 4 == 0 or not healthy:
            optimizer.zero_grad()
        loss = ((model(batch) - 1.0) ** 2).mean() / 4
        whole += torch.autograd.grad(loss, [model.bias], retain_graph=True)[0]
        loss.backward()  # here
        if number % 4 == 3:
            lost |= not torch.allclose(whole, model.bias.grad)
            whole.zero_()
            optimizer.step()
    print(f"loss {loss.item():.6f}")
    return lost


@twin("never-passed", others=("never-passed",))
def parameters_of_the_judge(healthy: bool) -> bool:
    """The optimizer of a generator has the parameters of its judge."""
    draw, judge = nn.Linear(2, 3), nn.Linear(3, 1)
    of_draw = torch.optim.Adam((draw if healthy else judge).parameters())
    of_judge = torch.optim.Adam(judge.parameters())
    before = weights(draw)
    for _ in range(4):
        of_judge.zero_grad()
        (judge(torch.ones(4, 3)) - judge(draw(torch.ones(4, 2)))).mean().backward()
        of_judge.step()
        of_draw.zero_grad()
        judge(draw(torch.ones(4, 2))).mean().backward()
        of_draw.step()
    return same(before, draw)


@twin("never-passed", others=("no-gradient", "never-passed"))
def stepped_for_its_schedule_only(healthy: bool) -> None:
    """Another one trains with its rate; unless that one's model is in no optimizer."""
    model = net()
    optimizer = torch.optim.Adam((model if healthy else model[1]).parameters(), 0.1)
    clock = SGD([nn.Parameter(torch.zeros(1))], 1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(clock, T_max=12)
    for _ in range(12):
        optimizer.param_groups[0]["lr"] = 0.1 * clock.param_groups[0]["lr"]
        step(optimizer, model)
        clock.step()
        schedule.step()


@fine
def gradients_that_nobody_needs(healthy: bool) -> None:
    """Those of a judge that is not frozen, where an image is trained or another model."""
    judge, draw = net(), nn.Linear(2, 3)
    image = nn.Parameter(torch.ones(4, 3))
    for optimizer in (SGD([image], 0.1), SGD(draw.parameters(), 0.1)):
        for _ in range(4):
            optimizer.zero_grad()
            judge(image + draw(torch.ones(4, 2))).mean().backward()
            optimizer.step()


@fine
def unfrozen_without_a_part_in_the_loss(healthy: bool) -> None:
    model = net()
    model[0].requires_grad_(False)
    optimizer = SGD(model[1].parameters(), 0.1)
    step(optimizer, model)
    model[0].requires_grad_(True)
    for _ in range(3):
        optimizer.zero_grad()
        model[1](torch.ones(4, 2)).mean().backward()
        optimizer.step()


@fine
def critic_frozen_for_the_generator(healthy: bool) -> None:
    draw, judge = nn.Linear(3, 3), nn.Linear(3, 1)
    both = nn.Sequential(draw, judge)
    of_draw, of_judge = (torch.optim.Adam(each.parameters()) for each in (draw, judge))
    for _ in range(4):
        judge.requires_grad_(False)
        step(of_draw, both)
        judge.requires_grad_(True)
        step(of_judge, judge)


@twin("", kinds=("with its state", "with new weights", "with other weights"))
def optimizers_in_a_row(healthy: bool, renewed: str) -> None:
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


def steps(number: int) -> None:
    """A run of so many steps, as of one worker."""
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    for _ in range(number):
        step(optimizer, model)
