"""Healthy programs for PyTorch, drawn at random: `python -m fuzz.healthy_torch`, run in `tests`.

A program is one way of each kind: a model, an optimizer, when gradients are cleared, accumulated,
clipped and scaled, a schedule, and what else a loop does. Each is as a tutorial has it, so nothing
may be said of any.
"""

import copy
import io
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from fuzz.healthy import main, said
from torch import nn
from torch.optim import lr_scheduler as schedules

import tracer

torch.set_num_threads(1)
BATCHES, EPOCHS = 8, 3


class Tied(nn.Module):  # type: ignore[misc]
    """Two names for one weight, and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(4, 4), nn.Linear(4, 4)
        self.leave.weight = self.enter.weight
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        return self.head(self.norm(torch.tanh(self.leave(torch.tanh(self.enter(x))))))


class Listed(nn.Module):  # type: ignore[misc]
    """Layers in a list, and a scale of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.head, self.scale = nn.Linear(4, 2), nn.Parameter(torch.ones(1))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.scale * self.head(x)


def mlp() -> Any:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Dropout(0.1), nn.Linear(5, 2))


def frozen_base() -> Any:
    model = mlp()
    model[0].requires_grad_(False)
    return model


MODELS: tuple[Callable[[], Any], ...] = (mlp, Tied, Listed, frozen_base)
OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05),
    "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
    "decay": lambda p: torch.optim.SGD(p, 0.05, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01),
    "fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "foreach": lambda p: torch.optim.RMSprop(p, 0.01, foreach=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.05),
    "lbfgs": lambda p: torch.optim.LBFGS(p, 0.05, max_iter=2),
}
GROUPS = ("model.parameters", "those that train", "decay of matrices", "a rate for each part")
CLEARS = ("before", "after", "of the model", "to zero", "by hand")
ACCUMULATES = (1, 1, 2, 4)
CLIPS = ("no", "no", "norm", "value")
SCALES = ("no", "no", "scaler", "scaler off", "autocast")
SCHEDULES: dict[str, Callable[[Any, int], Any]] = {
    "no": lambda optimizer, steps: None,
    "each epoch": lambda optimizer, steps: schedules.StepLR(optimizer, 1, 0.5),
    "cosine": lambda optimizer, steps: schedules.CosineAnnealingLR(optimizer, EPOCHS),
    "plateau": lambda optimizer, steps: schedules.ReduceLROnPlateau(optimizer, patience=0),
    "one cycle": lambda optimizer, steps: schedules.OneCycleLR(
        optimizer, 0.05, total_steps=steps, cycle_momentum=False
    ),
    "warmup": lambda optimizer, steps: schedules.LambdaLR(optimizer, lambda n: min(1, (n + 1) / 5)),
    "both": lambda optimizer, steps: schedules.SequentialLR(
        optimizer,
        [schedules.LinearLR(optimizer, 0.1, 1.0, 4), schedules.ExponentialLR(optimizer, 0.99)],
        [4],
    ),
}
OF_STEPS = ("one cycle", "warmup", "both")
EXTRAS = (
    "nothing",
    "evaluates",
    "averages",
    "resumes",
    "two losses",
    "penalty",
    "logs norms",
    "clamps weights",
    "a teacher",
    "stops early",
    "critic",
    "unfreezes",
    "retains",
    "hooks",
    "saliency",
    "adversarial",
)


class Program(NamedTuple):
    """One way of each kind."""

    model: Callable[[], Any]
    optimizer: str
    groups: str
    clears: str
    accumulates: int
    clips: str
    scales: str
    schedule: str
    extra: str
    seed: int


def drawn(seed: int) -> Program:
    """The program of a seed."""
    ways = MODELS, [*OPTIMIZERS], GROUPS, CLEARS, ACCUMULATES, CLIPS, SCALES, [*SCHEDULES], EXTRAS
    of = random.Random(seed)
    program = Program._make([*(of.choice(each) for each in ways), seed])
    if program.optimizer == "lbfgs":  # which computes its loss itself, some times in a step
        program = program._replace(accumulates=1, clips="no", scales="no", extra="evaluates")
        program = program._replace(groups="those that train", schedule="no", clears="before")
    if program.extra in ("resumes", "stops early") and program.schedule in OF_STEPS:
        program = program._replace(schedule="each epoch")
    return program


def groups_of(program: Program, model: Any) -> Any:
    trained = [p for p in model.parameters() if p.requires_grad]
    if program.groups == "decay of matrices":
        return [
            {"params": [p for p in trained if p.ndim > 1], "weight_decay": 0.01},
            {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
        ]
    if program.groups == "a rate for each part":
        return [{"params": trained[:1], "lr": 0.01}, {"params": trained[1:]}]
    return model.parameters() if program.groups == "model.parameters" else trained


class Run:
    """A program that runs; `steps` are those that it makes."""

    def __init__(self, program: Program) -> None:
        torch.manual_seed(program.seed)
        self.program, self.steps = program, 0
        self.model = program.model()
        self.average = torch.optim.swa_utils.AveragedModel(self.model)
        self.teacher = copy.deepcopy(self.model).eval()
        self.make()
        self.scaler = torch.amp.GradScaler(
            "cpu", init_scale=8.0, enabled=program.scales == "scaler"
        )
        if program.extra == "hooks":
            next(p for p in self.model.parameters() if p.requires_grad).register_hook(lambda g: g)
        for epoch in range(EPOCHS):
            self.epoch(epoch)
            if program.extra == "stops early" and epoch == 1:
                break

    def make(self) -> None:
        program = self.program
        self.optimizer = OPTIMIZERS[program.optimizer](groups_of(program, self.model))
        steps = EPOCHS * BATCHES // program.accumulates
        self.schedule = SCHEDULES[program.schedule](self.optimizer, steps)
        self.critic = nn.Linear(2, 1)
        self.of_critic = torch.optim.Adam(self.critic.parameters(), 0.01)

    def batches(self) -> Iterator[tuple[Any, Any]]:
        for _ in range(BATCHES):
            yield torch.randn(6, 4), torch.randn(6, 2)

    def epoch(self, epoch: int) -> None:
        program, model = self.program, self.model
        model.train()
        if program.extra == "unfreezes" and epoch == 1:
            frozen = [p for p in model.parameters() if not p.requires_grad]
            known = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
            for parameter in frozen:
                parameter.requires_grad_(True)
            if new := [p for p in frozen if id(p) not in known]:
                self.optimizer.add_param_group({"params": new})
                if program.schedule != "no":
                    steps = (EPOCHS - 1) * BATCHES // program.accumulates
                    self.schedule = SCHEDULES[program.schedule](self.optimizer, steps)
        for number, (x, y) in enumerate(self.batches(), 1):
            if program.optimizer == "lbfgs":
                self.optimizer.step(lambda x=x, y=y: self.closure(x, y))
                self.steps += 1
                continue
            if (
                program.clears != "after"
                and number % program.accumulates == 1 % program.accumulates
            ):
                self.clear()
            self.backward(x, y)
            if number % program.accumulates == 0:
                self.step()
        self.end_of_epoch(epoch, x, y)

    def closure(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        return loss

    def clear(self) -> None:
        way = self.program.clears
        if way == "of the model":
            self.model.zero_grad()
        elif way == "to zero":
            self.optimizer.zero_grad(set_to_none=False)
        elif way == "by hand":
            for parameter in self.model.parameters():
                parameter.grad = None
        else:
            self.optimizer.zero_grad()

    def backward(self, x: Any, y: Any) -> None:
        extra = self.program.extra
        if extra == "adversarial" and self.program.accumulates == 1:
            x = x.requires_grad_(True)
            nn.functional.mse_loss(self.model(x), y).backward()
            x = (x + 0.1 * x.grad.sign()).detach()
            self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.program.scales == "autocast"):
            if extra == "penalty":
                x = x.requires_grad_(True)
            out = self.model(x)
            loss = nn.functional.mse_loss(out.float(), y)
            if extra == "a teacher":
                with torch.no_grad():
                    wanted = self.teacher(x)
                loss = loss + nn.functional.mse_loss(out.float(), wanted.float())
            if extra == "critic":
                loss = loss - 0.1 * self.critic(out.float()).mean()
        if extra == "penalty":
            (slope,) = torch.autograd.grad(loss, x, create_graph=True)
            loss = loss + slope.pow(2).sum()
        loss = loss / self.program.accumulates
        if extra in ("two losses", "retains"):
            self.scaler.scale(loss).backward(retain_graph=True)
            loss = 0.1 * out.float().abs().mean()
        self.scaler.scale(loss).backward()
        self.out = out.detach().float()

    def step(self) -> None:
        program, trained = self.program, [p for p in self.model.parameters() if p.requires_grad]
        if program.clips != "no":
            self.scaler.unscale_(self.optimizer)
            if program.clips == "norm":
                nn.utils.clip_grad_norm_(trained, 1.0)
            else:
                nn.utils.clip_grad_value_(trained, 0.5)
        if program.extra == "logs norms":
            sum(float(p.grad.norm()) for p in trained if p.grad is not None)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.steps += 1
        if program.schedule in OF_STEPS:
            self.schedule.step()
        if program.clears == "after":
            self.optimizer.zero_grad()
        if program.extra == "averages":
            self.average.update_parameters(self.model)
        if program.extra == "clamps weights":
            with torch.no_grad():
                for parameter in trained:
                    parameter.clamp_(-2, 2)
        if program.extra == "critic":
            self.of_critic.zero_grad()
            drawn_apart = self.critic(self.out).exp() + (-self.critic(torch.randn(6, 2))).exp()
            drawn_apart.mean().backward()
            self.of_critic.step()
            self.steps += 1

    def end_of_epoch(self, epoch: int, x: Any, y: Any) -> None:
        program = self.program
        self.model.eval()
        with torch.no_grad():
            loss = nn.functional.mse_loss(self.model(x), y)
        if program.extra == "saliency":
            self.model(x.detach().requires_grad_(True)).max().backward()
            self.optimizer.zero_grad()
        if program.schedule == "plateau":
            self.schedule.step(loss)
        elif program.schedule not in ("no", *OF_STEPS):
            self.schedule.step()
        if program.extra == "resumes" and epoch == 0:
            file = io.BytesIO()
            parts = {"model": self.model, "optimizer": self.optimizer, "scaler": self.scaler}
            if self.schedule is not None:
                parts["schedule"] = self.schedule
            torch.save({name: part.state_dict() for name, part in parts.items()}, file)
            file.seek(0)
            saved = torch.load(file, weights_only=False)
            self.model = program.model()
            self.model.load_state_dict(saved["model"])
            self.make()
            self.optimizer.load_state_dict(saved["optimizer"])
            if self.schedule is not None:
                self.schedule.load_state_dict(saved["schedule"])


def check(seed: int) -> list[str]:
    """What is said of a program, and of its steps if they are counted wrong."""
    program = drawn(seed)
    effects = seed % 2 == 1 and program.optimizer != "lbfgs"  # which comes to an end
    with tracer.record(effects=effects) as recording:
        run = Run(program)
    return said(recording.trace(), run.steps)


if __name__ == "__main__":
    main(drawn, check)
