"""What of PyTorch is relied on: its names stand here, for `torch.optim` alone.

Read in PyTorch 2.15: `optim/optimizer.py` (`profile_hook_step` calls the hooks around each `step`
of each class, an inner one that `super().step()` calls too), `amp/grad_scaler.py` (`step` leaves
the optimizer's out, or gives `found_inf` to one that is fused, whose kernel leaves out its work).
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

F = TypeVar("F", bound=Callable[..., Any])

__all__ = [
    "FROZEN",
    "HOLD",
    "MOVED",
    "RAN",
    "GradScaler",
    "Module",
    "Optimizer",
    "constant",
    "eagerly",
    "has_hooks",
    "is_compiling",
    "is_optimizer",
    "is_sparse",
    "layout_if",
    "layouts_of",
    "on_run",
    "rank_and_world",
    "register_optimizer_step_pre_hook",
    "steps_with_hooks",
]

GradScaler: Any = torch.amp.GradScaler
Module: Any = torch.nn.Module

is_compiling: Callable[[], bool] = torch.compiler.is_compiling
"""Whether `torch.compile` looks at the code that calls this, to build a program."""

eagerly: Callable[..., Any] = torch._disable_dynamo
"""Has a function called by each run of a program, which is parted there."""


def constant(function: F) -> F:
    """Have a function called where a program is built, once and then; the program has its result.

    It is what `torch.compiler.assume_constant_result` does (`_dynamo/decorators.py`), which takes
    seconds to import; who compiles nothing shall not wait for that.
    """
    vars(function)["_dynamo_marked_constant"] = True
    return function


FROZEN = "frozen"
"""In place of a layout: there is no gradient, and none was to be expected."""


def layouts_of(parameters: list[Any]) -> list[Any]:
    """The layout of the gradient of each parameter; None if it has none, `FROZEN` if it needs none.

    Training waits for this in each step.
    """
    return [
        grad.layout if (grad := p.grad) is not None else None if p.requires_grad else FROZEN
        for p in parameters
    ]


def layout_if(handed: bool | None) -> Any:
    """What `layouts_of` gives for a dense gradient, for none, and for none that is needed: None."""
    return torch.strided if handed else FROZEN if handed is None else None


_STRIDED = {torch.strided, getattr(torch, "_mkldnn", None)}


def is_sparse(layout: Any) -> bool:
    """Whether a gradient with this layout is sparse."""
    return layout not in _STRIDED


def steps_with_hooks(cls: type) -> int:
    """How many of the classes in the MRO have a `step` that calls the hooks."""
    steps = [vars(each)["step"] for each in cls.__mro__ if "step" in vars(each)]
    return sum(bool(getattr(step, "hooked", False)) for step in steps)


def has_hooks(optimizer: Any) -> bool:
    """Whether its `step` calls the hooks; a shell around another optimizer has a plain one."""
    return bool(getattr(type(optimizer).step, "hooked", False)) and hasattr(
        optimizer, "_optimizer_step_post_hooks"
    )


def is_optimizer(given: Any) -> bool:
    """Whether it is an optimizer of PyTorch."""
    return issubclass(type(given), Optimizer)


def rank_and_world() -> tuple[int, int, str] | None:
    """The rank of this process, how many there are, and how they talk; None for one alone."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    return distributed.get_rank(), distributed.get_world_size(), str(distributed.get_backend())


_library = torch.library.Library("optimizer_tracer", "DEF")
for _name in ("hold", "ran"):
    _library.define(f"{_name}(Tensor(a!) moved, int number, Tensor[] parameters) -> ()")
    _library.impl(_name, lambda moved, number, parameters: None, "Meta")

MOVED = torch.zeros((), dtype=torch.int64)
"""What the ops below say that they write to, so that no compiler leaves them out or moves them."""
HOLD: Any = torch.ops.optimizer_tracer.hold
"""The op that calls back where a step begins in a program, with what the parameters hold there.

What a program writes to a tensor may be in its memory only when all of it has run: so the values
are handed over, and not the parameters. It stands here as it is, and in no function: one of this
module Dynamo may be told to leave alone, and to part the program there.
"""
RAN: Any = torch.ops.optimizer_tracer.ran
"""The same where a step ends."""


def on_run(name: str, called: Callable[[int, list[Any]], None]) -> None:
    """Have `called` with the number and the values each time a program runs the op `name`.

    Dynamo would compile what is called from a program that has parts.
    """
    called = eagerly(called)
    _library.impl(
        name,
        lambda moved, number, parameters: called(number, parameters),
        "CompositeExplicitAutograd",
    )
