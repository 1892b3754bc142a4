"""The steps of `torch.optim` that are under way, in each thread.

PyTorch calls no hook for a step that raises. That is found out when the next one begins, or a trace
is read: the code that called the hook does not run any more. It is known by its frame, which is not
held, for that would hold all that the program computed.
"""

import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

STEP, ASKED = "step", "GradScaler.step"
"""The methods of which one outermost execution is a step: see `tracer.kinds`."""


class Watch(Protocol):
    """What counts the steps of an optimizer."""

    recorder: Any

    def raised(self, method: str, *, inner: bool) -> None:
        """A step was ended by an exception; an inner one, if the step around it went on."""


class Unsure(NamedTuple):
    """A parameter that a step may have updated."""

    is_same: Any
    """A tensor on the device: whether it holds what it held."""
    site: int
    """That of the update."""
    note: str
    """What to note if it holds what it held; empty if that is known to be no update."""


def known_by(python: FrameType | None) -> tuple[int, int]:
    """What a frame is known by; another one may come to have its `id`, but of other code."""
    return id(python), id(None if python is None else python.f_code)


class Step:
    """A step that is under way, or has just ended; it keeps no parameter alive."""

    __slots__ = (
        "begun",
        "copies",
        "held",
        "inside",
        "layouts",
        "method",
        "program",
        "python",
        "requests",
        "seen",
        "skipped",
        "unsure",
        "updates",
        "watch",
    )

    def __init__(self, watch: Watch, python: FrameType | None, method: str = STEP) -> None:
        self.watch = watch
        self.method = method
        self.python = known_by(python)
        self.begun: Mapping[int, int] | None = None
        """The versions of its parameters by `id`, if they tell anything: `compat.versions_of`."""
        self.copies: dict[int, Any] = {}
        """Copies of the parameters whose versions may not tell, by `id`; None if it has none."""
        self.layouts: list[Any] | None = None
        """The layouts of the gradients that it was given; None if they come until its end."""
        self.held: dict[int, Any] | None = None
        """If effects are asked for, copies of what it may change, by their `id`."""
        self.seen: Any = None
        """What came of them."""
        self.requests: Sequence[int] | None = None
        """The sites of what it was asked for; None if that is not known yet."""
        self.updates: Sequence[int] = ()
        """Those of the updates that it makes, if it makes them itself."""
        self.inside: list[int] | None = None
        """Those of what was called in it; None if no step was."""
        self.skipped: Any = None
        """A number on the device: whether it was skipped; None if that is known."""
        self.unsure: Sequence[Unsure] = ()
        """The parameters of which only the device knows whether it updated them."""
        self.program: int | None = None
        """The number of the program of which it is a run; None if Python ran it."""


class _Thread(NamedTuple):
    number: int
    steps: list[Step]


class _Here(threading.local):
    """What is known of a thread."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.held: WeakKeyDictionary[Watch, list[Any]] = WeakKeyDictionary()
        """Copies of what a program may change that runs, or was ended by an exception."""
        alive = sys._current_frames()
        with _lock:
            _threads[:] = [each for each in _threads if each.steps or each.number in alive]
            _threads.append(_Thread(threading.get_ident(), self.steps))


_lock = threading.Lock()
"""Held by who takes steps off that are not the last one of its own thread."""
_threads: list[_Thread] = []
here = _Here()


def take_off(step: Step) -> list[Step]:
    """A step of this thread ends; returns those that an exception had ended in it."""
    steps = here.steps
    if steps[-1] is step:  # another thread takes off none that runs, and this one does
        steps.pop()
        return []
    with _lock:
        place = steps.index(step)
        ended = steps[place + 1 :]
        del steps[place:]
    return ended


def drop_ended(python: FrameType | None) -> None:
    """Forget the steps of this thread that an exception ended, as `python` begins another one."""
    at = sys._getframe(1) if python is None else python.f_back  # one that begins is none that ended
    _drop(here.steps, list(here.steps), at)


def drop_raised() -> None:
    """Find the steps that an exception ended, in any thread: a trace is about to be read."""
    with _lock:
        threads = [(each, list(each.steps)) for each in _threads if each.steps]
    if threads:  # what began after this look is none of them
        frames = sys._current_frames()
        for (number, steps), seen in threads:
            _drop(steps, seen, frames.get(number))


def _drop(steps: list[Step], seen: Sequence[Step], at: FrameType | None) -> None:
    """Take those of the `seen` steps off that are not run by the frame `at` or one around it."""
    running = set()
    while at is not None:
        running.add(known_by(at))
        at = at.f_back
    ended: list[Step] = []
    for step in seen:
        if ended or step.python not in running:  # what was called in one that ended has ended, too
            with _lock, suppress(ValueError):  # another thread may have been faster
                steps.remove(step)
                ended.append(step)
    for step in ended:
        step.watch.raised(step.method, inner=step is not ended[0] or step is not seen[0])
