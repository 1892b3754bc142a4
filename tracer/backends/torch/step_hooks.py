"""The hooks around the steps of an optimizer of PyTorch, which it calls in compiled code, too.

Python runs them in eager mode: then they call the `StepCounter`. `torch.compile` inlines them where
it compiles a step: there each puts an operator into the program, which notifies it each time that
it runs. The first one does so only where effects are asked for; both are handed what the parameters
hold then.
"""

import sys
from contextlib import nullcontext
from typing import Any

from tracer.backends.torch import dynamo
from tracer.backends.torch.listeners import notify, wait_until_notified
from tracer.backends.torch.operators import BEGIN, END, MOVED, told_by
from tracer.backends.torch.programs import Handed, programs_of


class Hook:
    """A hook around the steps of an optimizer; in a copy of the optimizer it does nothing."""

    def __init__(self, counter: Any) -> None:
        """`counter` counts the steps: a `StepCounter`."""
        self.counter = counter
        self.number = counter.programs.number
        self.counters = counter.recorder.blocks.counters

    def __reduce__(self) -> Any:
        return NO_HOOK


class Before(Hook):
    """The hook before the steps."""

    def __call__(self, optimizer: Any, given: Any, named: Any) -> None:
        if not dynamo.is_compiling():
            self.counter.before(optimizer, given, named, sys._getframe(1))
        elif _is_alone(self.number):
            if self.counters.effects is not None:
                BEGIN(MOVED, self.number, _values(optimizer))
            others = len(optimizer._optimizer_step_pre_hooks) - 1
            _begins(self.number, _handed_before(optimizer, given, named, others))
        else:
            _before_in_program(self.counter, optimizer, given, named)


class After(Hook):
    """The hook after the steps."""

    def __call__(self, optimizer: Any, given: Any, named: Any) -> None:
        if not dynamo.is_compiling():
            self.counter.after(optimizer, named, sys._getframe(1))
        elif _is_alone(self.number):
            # The number before the values are asked for: that is use.
            number, skipped = _program(self.number, handed_to(optimizer)), found_inf(optimizer)
            END(
                MOVED,
                number,
                _values(optimizer) if self.counters.effects is not None else [],
                skipped,
            )
        else:
            _after_in_program(self.counter, optimizer, named)


def before_any(optimizer: Any, given: Any, named: Any) -> None:
    """Some optimizer steps, while a recording runs, which is notified of it if it has no hooks."""
    if _has_hooks(optimizer):
        if not dynamo.is_compiling():
            wait_until_notified(optimizer)
    elif not dynamo.is_compiling():
        notify(optimizer)
    elif _is_alone(_number(id(optimizer))):
        others = len(optimizer._optimizer_step_pre_hooks)
        _begins(_number(id(optimizer)), _handed_before(optimizer, given, named, others))
    else:
        _notify_in_program(optimizer)


def after_any(optimizer: Any, given: Any, named: Any) -> None:
    """It has stepped; in a program, which notifies when it runs, it has no hooks yet."""
    if dynamo.is_compiling() and not _has_hooks(optimizer) and _is_alone(_number(id(optimizer))):
        number = _program(_number(id(optimizer)), handed_to(optimizer))
        END(MOVED, number, [], found_inf(optimizer))


NO_HOOK = getattr, (nullcontext(), "__exit__")
"""How a hook is copied and pickled, as what takes three arguments and does nothing.

Who unpickles it need not have the tracer. It is for classes that say themselves what is pickled of
them: PyTorch leaves out the hooks.
"""


def found_inf(optimizer: Any) -> Any:
    """The tensor with which a `GradScaler` tells a fused step whether to skip; None if none does.

    Where no parameter has a gradient, the `GradScaler` sets the number 0 instead. It stands here
    because Dynamo inlines it: what is in `tracer.core` it does not follow.
    """
    found = getattr(optimizer, "found_inf", None)
    return None if isinstance(found, int) else found


def handed_to(optimizer: Any) -> Handed:
    """Which parameters of an optimizer have a gradient, for code that is compiled."""
    handed = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            none = False if parameter.requires_grad else None
            handed.append(True if parameter.grad is not None else none)
    return tuple(handed)


def _handed_before(optimizer: Any, given: Any, named: Any, others: int) -> Handed | None:
    """The same before a step; None if a closure or one of the `others` hooks may change it."""
    return handed_to(optimizer) if len(given) == 1 and not named and not others else None


def _has_hooks(optimizer: Any) -> bool:
    # Another thread may change them: the list is made in one instruction. A loop is for Dynamo.
    for hook in list(optimizer._optimizer_step_post_hooks.values()):  # noqa: SIM110
        if type(hook) is After:
            return True
    return False


def _values(optimizer: Any) -> list[Any]:
    """What the parameters hold of which a step is told whether they have a gradient.

    With one on the device `meta`, an operator would be run there alone, which is not at all.
    """
    return [
        parameter.detach()
        for group in optimizer.param_groups
        for parameter in group["params"]
        if (parameter.grad is not None or parameter.requires_grad) and not parameter.is_meta
    ]


# What is called while a program is built: an object is handed over by its number or `id`.


@dynamo.constant
def _number(optimizer: int) -> int:
    return programs_of(optimizer).number


@dynamo.constant
def _is_alone(number: int) -> bool:
    return bool(told_by(number).alone)


@dynamo.constant
def _begins(number: int, handed: Handed | None) -> int:
    told_by(number).step_begins(handed)
    return 0


@dynamo.constant
def _program(number: int, handed: Handed) -> int:
    return int(told_by(number).step_ends(handed))


# What parts a program.


@dynamo.eagerly
def _before_in_program(counter: Any, optimizer: Any, given: Any, named: Any) -> None:
    python = dynamo.frame_around(sys._getframe(1))
    counter.before(optimizer, given, named, python, compiled=True)


@dynamo.eagerly
def _after_in_program(counter: Any, optimizer: Any, named: Any) -> None:
    counter.after(optimizer, named, dynamo.frame_around(sys._getframe(1)), compiled=True)


@dynamo.eagerly
def _notify_in_program(optimizer: Any) -> None:
    """The next time, the program is another one, with hooks."""
    notify(optimizer)
