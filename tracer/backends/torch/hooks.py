"""The hooks around the steps of an optimizer of PyTorch, which it calls in compiled code, too.

Python runs them in eager mode: then they tell who watches the steps. `torch.compile` inlines them
where it compiles a step: there each puts an operator into the program, which tells it each time
that it runs. The first one does so only where effects are asked for; both are handed what the
parameters hold then.
"""

import sys
from contextlib import nullcontext
from typing import Any

from tracer.backends.torch import dynamo
from tracer.backends.torch.operators import BEGIN, END, MOVED, told_by
from tracer.backends.torch.programs import Handed
from tracer.backends.torch.under_way import here, known_by, take_off


class Before:
    """The hook before the steps of an optimizer; in a copy of the optimizer it does nothing."""

    def __init__(self, watch: Any) -> None:
        """`watch` counts the steps: a `Watch` of `tracer.backends.torch.steps`."""
        self.watch = watch
        self.number = watch.number
        self.counters = watch.recorder.blocks.counters
        self.handed: Handed | None = None
        """In a program: the gradients as the step began; None if they come until its end."""

    def __call__(self, optimizer: Any, given: Any, named: Any) -> None:
        if not dynamo.is_compiling():
            self.watch.before(optimizer, given, named, sys._getframe(1))
        elif _is_alone(self.number):
            self.handed = None
            if len(given) == 1 and not named and len(optimizer._optimizer_step_pre_hooks) == 1:
                self.handed = handed_to(optimizer)
            if self.counters.effects is not None:
                BEGIN(MOVED, self.number, _values(optimizer))
            _mark(self.number)
        else:
            _before_in_program(self.watch, optimizer, given, named)

    def __reduce__(self) -> Any:
        return NO_HOOK


class After:
    """The hook after the steps of an optimizer; in a copy of the optimizer it does nothing."""

    def __init__(self, watch: Any, before: Before) -> None:
        self.watch = watch
        self.number = watch.number
        self.counters = watch.recorder.blocks.counters
        self.before = before

    def __call__(self, optimizer: Any, given: Any, named: Any) -> None:
        if not dynamo.is_compiling():
            self.watch.after(optimizer, named, sys._getframe(1))
        elif _is_alone(self.number):
            handed = self.before.handed
            if handed is None:
                handed = handed_to(optimizer)
            skipped = found_inf(optimizer)
            number = _program(self.number, handed)  # before the values are asked for: that is use
            values = _values(optimizer) if self.counters.effects is not None else []
            END(MOVED, number, values, skipped)
        else:
            _after_in_program(self.watch, optimizer, named)

    def __reduce__(self) -> Any:
        return NO_HOOK


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


@dynamo.constant
def _is_alone(number: int) -> bool:
    return bool(told_by(number).alone)


@dynamo.constant
def _mark(number: int) -> int:
    told_by(number).mark = dynamo.mark()
    return 0


@dynamo.constant
def _program(number: int, handed: Handed) -> int:
    return int(told_by(number).program(handed))


@dynamo.eagerly
def _before_in_program(watch: Any, optimizer: Any, given: Any, named: Any) -> None:
    python = dynamo.frame_around(sys._getframe(1))
    ended = [s for s in here.steps if s.watch is watch and s.python == known_by(python)]
    for step in ended[:1]:  # no frame runs two at once
        for raised in (*take_off(step), step):
            raised.watch.raised(raised.method, inner=False)
    watch.before(optimizer, given, named, python)


@dynamo.eagerly
def _after_in_program(watch: Any, optimizer: Any, named: Any) -> None:
    watch.after(optimizer, named, None, compiled=True)
