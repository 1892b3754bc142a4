"""The steps of `torch.optim` that are under way, in each thread.

PyTorch calls no hook for a step that raises. That is found out when the next one begins, or a trace
is read: the code that called the hook does not run any more. It is known by the `id` of its frame,
which is not held, for that would hold all that the program computed.
"""

import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any, Protocol

STEP, ASKED = "step", "GradScaler.step"
"""The methods of which one outermost execution is a step: see `tracer.kinds`."""


class Watch(Protocol):
    """What counts the steps of an optimizer."""

    recorder: Any

    def raised(self, method: str, *, inner: bool) -> None:
        """A step was ended by an exception; an inner one, if the step around it went on."""


class Step:
    """A step that is under way, or has just ended."""

    __slots__ = (
        "begun",
        "held",
        "inside",
        "layouts",
        "method",
        "parameters",
        "python",
        "requests",
        "seen",
        "skipped",
        "watch",
    )

    def __init__(self, watch: Watch, python: FrameType | None, method: str = STEP) -> None:
        self.watch = watch
        self.method = method
        self.python = id(python)
        self.parameters: list[Any] = []
        self.layouts: list[Any] | None = None
        self.begun: int | None = None  # the version of its first parameter, if that tells anything
        self.held: dict[int, Any] | None = None  # copies of what it may change, by their `id`
        self.seen: Any = None  # what came of them, if effects are asked for
        self.requests: Sequence[int] | None = None
        self.inside: list[int] | None = None  # the sites of the steps that were called in it
        self.skipped: Any = None  # a number on the device: whether those were; or the program it is


class _Here(threading.local):
    """What is known of a thread."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.held: dict[int, list[Any]] = {}
        """By the number of a watch, copies of what its program may change that runs."""


here = _Here()


def drop_ended(python: FrameType | None) -> None:
    """Forget the steps of this thread that an exception ended, as `python` begins another one."""
    at = sys._getframe(1) if python is None else python.f_back  # one that begins is none that ended
    running = {id(None)}
    while at is not None:
        running.add(id(at))
        at = at.f_back
    steps = here.steps
    for place, step in enumerate(steps):
        if step.python not in running:
            ended = steps[place:]
            del steps[place:]
            for each in ended:
                each.watch.raised(each.method, inner=place > 0 or each is not step)
            return


def drop_raised() -> None:
    """Find the steps of this thread that an exception ended: a trace is about to be read."""
    if here.steps:
        drop_ended(None)
