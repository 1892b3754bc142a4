"""Healthy programs for PyTorch: what loops clear, accumulate, clip, scale, schedule and do else.

Each is drawn by a seed, one way of each kind, as a tutorial has it. Nothing may be said of one.
"""

import io
import random
from collections.abc import Callable
from typing import Any

import torch
from support.findings_of import bad
from torch import nn
from torch.optim import lr_scheduler as schedules

import tracer

torch.set_num_threads(1)
BATCHES, EPOCHS = 8, 3


class Tied(nn.Module):  # type: ignore[misc]
    """Two names for one weight, a norm, layers in a list, and a scale of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.layers[1].weight = self.layers[0].weight
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.scale * self.head(self.norm(x))


def mlp(freeze: bool = False) -> Any:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Dropout(0.1), nn.Linear(5, 2))
    model[0].requires_grad_(not freeze)
    return model


MODELS: dict[str, Callable[[], Any]] = {
    "mlp": mlp,
    "tied": Tied,
    "frozen base": lambda: mlp(freeze=True),
}
OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
    "decay": lambda p: torch.optim.SGD(p, 0.05, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
    "fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "foreach": lambda p: torch.optim.RMSprop(p, 0.01, foreach=True),
}
SCHEDULES: dict[str, Callable[[Any, int], Any]] = {
    "no": lambda optimizer, steps: None,
    "each epoch": lambda optimizer, steps: schedules.StepLR(optimizer, 1, 0.5),
    "plateau": lambda optimizer, steps: schedules.ReduceLROnPlateau(optimizer, patience=0),
    "one cycle": lambda optimizer, steps: schedules.OneCycleLR(
        optimizer, 0.05, total_steps=steps, cycle_momentum=False
    ),
    "warmup": lambda optimizer, steps: schedules.LambdaLR(optimizer, lambda n: min(1, (n + 1) / 5)),
}
WAYS: dict[str, Any] = {
    "model": MODELS,
    "optimizer": OPTIMIZERS,
    "groups": ("one", "decay of matrices"),
    "clears": ("before", "after", "of the model", "to zero", "by hand"),
    "accumulates": (1, 1, 2, 4),
    "clips": ("no", "norm"),
    "scales": ("no", "no", "scaler", "scaler off", "autocast"),
    "schedule": SCHEDULES,
    "extra": (
        *("nothing", "averages", "resumes", "two losses", "penalty"),
        *("clamps weights", "critic", "unfreezes", "adversarial"),
    ),
}


class Run:
    """A program that runs; `steps` are those that it makes."""

    def __init__(self, program: dict[str, str], seed: int) -> None:
        torch.manual_seed(seed)
        self.program, self.extra, self.steps = program, program["extra"], 0
        self.every = int(program["accumulates"])
        self.of_steps = program["schedule"] in ("one cycle", "warmup")
        self.model = MODELS[program["model"]]()
        self.average = torch.optim.swa_utils.AveragedModel(self.model)
        self.make()
        enabled = program["scales"] == "scaler"
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=enabled)
        for epoch in range(EPOCHS):
            self.epoch(epoch)

    def make(self) -> None:
        trained = [p for p in self.model.parameters() if p.requires_grad]
        groups: Any = trained
        if self.program["groups"] == "decay of matrices":
            groups = [
                {"params": [p for p in trained if p.ndim > 1], "weight_decay": 0.01},
                {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
            ]
        self.optimizer = OPTIMIZERS[self.program["optimizer"]](groups)
        self.set_schedule(EPOCHS)
        self.critic = nn.Linear(2, 1)
        self.of_critic = torch.optim.Adam(self.critic.parameters(), 0.01)

    def set_schedule(self, epochs: int) -> None:
        make = SCHEDULES[self.program["schedule"]]
        self.schedule = make(self.optimizer, epochs * BATCHES // self.every)

    def epoch(self, epoch: int) -> None:
        self.model.train()
        frozen = [p for p in self.model.parameters() if not p.requires_grad]
        if self.extra == "unfreezes" and epoch == 1 and frozen:
            for parameter in frozen:
                parameter.requires_grad_(True)
            self.optimizer.add_param_group({"params": frozen})
            self.set_schedule(EPOCHS - 1)
        for number in range(1, BATCHES + 1):
            x, y = torch.randn(6, 4), torch.randn(6, 2)
            if self.program["clears"] != "after" and number % self.every == 1 % self.every:
                self.clear()
            self.backward(x, y)
            if number % self.every == 0:
                self.step()
        self.model.eval()
        with torch.no_grad():
            loss = nn.functional.mse_loss(self.model(x), y)
        if self.schedule is not None and not self.of_steps:
            self.schedule.step(*([loss] if self.program["schedule"] == "plateau" else []))
        if self.extra == "resumes" and epoch == 0 and not self.of_steps:
            self.resume()

    def clear(self) -> None:
        way = self.program["clears"]
        if way == "of the model":
            self.model.zero_grad()
        elif way == "by hand":
            for parameter in self.model.parameters():
                parameter.grad = None
        else:
            self.optimizer.zero_grad(set_to_none=way != "to zero")

    def backward(self, x: Any, y: Any) -> None:
        if self.extra == "adversarial" and self.every == 1:
            x = x.requires_grad_(True)
            nn.functional.mse_loss(self.model(x), y).backward()
            x = (x + 0.1 * x.grad.sign()).detach()
            self.optimizer.zero_grad()
        enabled = self.program["scales"] == "autocast"
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            x = x.requires_grad_(self.extra == "penalty")
            out = self.model(x)
            loss = nn.functional.mse_loss(out.float(), y)
            if self.extra == "critic":
                loss = loss - 0.1 * self.critic(out.float()).mean()
        if self.extra == "penalty":
            (slope,) = torch.autograd.grad(loss, x, create_graph=True)
            loss = loss + slope.pow(2).sum()
        loss = loss / self.every
        if self.extra == "two losses":
            self.scaler.scale(loss).backward(retain_graph=True)
            loss = 0.1 * out.float().abs().mean()
        self.scaler.scale(loss).backward()
        self.out = out.detach().float()

    def step(self) -> None:
        trained = [p for p in self.model.parameters() if p.requires_grad]
        if self.program["clips"] != "no":
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(trained, 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.steps += 1
        if self.of_steps:
            self.schedule.step()
        if self.program["clears"] == "after":
            self.optimizer.zero_grad()
        if self.extra == "averages":
            self.average.update_parameters(self.model)
        if self.extra == "clamps weights":
            with torch.no_grad():
                for parameter in trained:
                    parameter.clamp_(-2, 2)
        if self.extra == "critic":
            self.of_critic.zero_grad()
            drawn_apart = self.critic(self.out).exp() + (-self.critic(torch.randn(6, 2))).exp()
            drawn_apart.mean().backward()
            self.of_critic.step()
            self.steps += 1

    def resume(self) -> None:
        file = io.BytesIO()
        torch.save([self.model.state_dict(), self.optimizer.state_dict()], file)
        file.seek(0)
        weights, state = torch.load(file, weights_only=False)
        self.model = MODELS[self.program["model"]]()
        self.model.load_state_dict(weights)
        self.make()
        self.optimizer.load_state_dict(state)


def check(seed: int) -> list[str]:
    """What is said of a program, or counted wrong; each second one is recorded with effects."""
    choice = random.Random(seed).choice
    program = {kind: str(choice([*names])) for kind, names in WAYS.items()}
    with tracer.record(effects=seed % 2 == 1) as recording:
        run = Run(program, seed)
    trace = recording.trace()
    steps = sum(trace.steps_by_replica().values())
    found = [f"[{each.code}]: {each.text}" for each in bad(trace)]
    found += [] if steps == run.steps else [f"{steps} steps counted, {run.steps} made"]
    found += [] if trace.complete else list(trace.notes)
    return [str(program), *found] if found else []
