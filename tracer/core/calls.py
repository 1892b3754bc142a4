"""Calls under way: a `Call` for each call of an intercepted method. No framework.

It is made when the method is called and is done when that returns. Each thread has a stack of
them; steps under way are known to all threads, for a strategy runs parts of a step on other
threads. Those read where the call was made, add what they did to it and take its number; all else
is written by the thread that made the call. The traced methods and `tracer.core.recorder` make
them, and `tracer.backends.tensorflow.places` decides what each one is part of.
"""

import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from tracer.core.call_paths import UNKNOWN

CallRole = Literal["step", "group", "apply"]
"""What is called: a step method, a group method or an apply method: see `tracer.kinds`."""


class Place(NamedTuple):
    """Where the ops of a call go: None for eager mode; v1 branches share a graph, not a context."""

    graph: Any
    branch: Any
    region: Any
    """The graph of the function around it that is called: see `compat.called_graph`."""


EAGER = Place(None, None, None)


class Call:
    """A call of an intercepted method that is under way. It must not refer to itself.

    `Recorder.open` or `open_apply` puts it on the stack of its thread, `close` or `close_apply`
    takes it off. A call that neither of these ended was abandoned, as by Ctrl-C:
    `CallsUnderWay.abandoned` finds it.
    """

    __slots__ = (
        "applying",
        "before",
        "distributed",
        "extra",
        "failing",
        "gradient",
        "numbers",
        "own",
        "parent",
        "path",
        "place",
        "python",
        "recorder",
        "replica",
        "result",
        "role",
        "site_notes",
        "sites",
        "thread",
        "variable",
    )

    function = ""
    """What a program calls the compiled code that the call is in, if it is all in such code, where
    it is no call of Python; a class derived from this one may say it."""
    recorder: Any
    """The recorder that counts it, which imports this module; None until it has been opened."""
    role: CallRole
    place: Place
    replica: int
    distributed: bool
    """Whether it was made under a strategy."""
    parent: "Call | None"
    path: int
    """The number of the path of calls to a step in eager mode: see `tracer.core.call_paths`."""
    applying: int | None
    """The site of the apply method that this is part of, or that is under way here: what it calls
    is no update of its own. None if there is none.

    On the fast path the method has no `Call`: `Recorder.open_apply` sets this in the call of a
    step in eager mode, and `close_apply` adds the site to the step.
    """
    own: Sequence[int]
    """The sites of the call itself: that of a step, that of each variable of an apply method."""
    sites: list[int]
    """The sites of what was called in it; those of its own come last, when it has ended."""
    site_notes: list[Any]
    """What a backend notes of what was called in it; it goes to the parent with the sites."""
    failing: int | None
    """Of an outermost step: the variable on which an apply method raised."""
    result: Any
    python: Any
    """Python's frame of the method, while it runs; or what it is known by: see `known_by`."""
    numbers: dict[int, int] | None
    """The numbers, by replica, of the step that it is in eager mode, as far as they were asked
    for; a step in a cross-replica context is one of each replica. Until it has ended only a
    function that it calls asks."""
    variable: Any
    """What an apply method updates, if that is one variable."""
    before: Any
    """What was there before it may change: of an apply method what its variable held, if that is
    looked at (`Blocks.write_checks`); of a step what each variable held that it got, where effects
    are asked for (`Effects`)."""
    gradient: Any
    """The first gradient that it got in a graph, None if there was none yet. A step begins
    when this one is there: it is that of the first layer, as a rule, which needs all data and comes
    last. A gradient that needs no data (of the last bias, for a loss that is a mean) is there even
    if the data are not."""
    extra: Any
    """What the backend notes of it as it begins."""
    thread: int

    @property
    def interrupted(self) -> str:
        """The note of a trace if an exception ends the call unseen; empty for none."""
        return "a call was interrupted, and what it had run until then is not counted"


def start_call(
    call: Call,
    role: CallRole,
    place: Place,
    replica: int,
    parent: Call | None,
    *,
    distributed: bool = False,
) -> bool:
    """Set what a new call is, where it is made, and which call it is part of.

    `distributed` if a strategy was entered. Returns False for a call of a group method that adds
    nothing to its parent: that stands below it on the stack of this thread, in the same place.
    """
    call.role = role
    call.place = place
    call.replica = replica
    call.distributed = distributed
    call.parent = parent
    call.applying = None if parent is None else parent.applying
    call.path, call.own = UNKNOWN, ()
    call.sites, call.site_notes = [], []
    call.failing = call.result = call.python = call.numbers = None
    call.variable = call.before = call.gradient = call.extra = None
    call.thread = threading.get_ident()
    if role != "group" or parent is None:
        return True
    return parent.thread != call.thread or parent.place != place


def known_by(python: Any) -> tuple[int, int]:
    """Identifies a Python frame without keeping it alive.

    Another frame may come to have its `id`, but of other code.
    """
    return id(python), id(python.f_code)


class CallsUnderWay:
    """The stack of calls of each thread, and the steps under way in all of them."""

    def __init__(self) -> None:
        self.steps: list[Call] = []
        """Each change of the list is atomic; who reads it takes a copy."""
        self.of_thread = threading.local()
        """Its `stack` is that of this thread, if there was one yet."""

    def stack(self) -> list[Call]:
        """The calls of this thread, the innermost last."""
        try:
            stack: list[Call] = self.of_thread.stack
        except AttributeError:
            stack = self.of_thread.stack = []
        return stack

    def take_off(self, call: Call) -> Sequence[Call]:
        """Take a call that has ended off the stack of this thread; returns the calls above it.

        An exception had ended these before they could leave.
        """
        stack = self.stack()
        if stack and stack[-1] is call:
            stack.pop()
            return ()
        place = stack.index(call) if call in stack else len(stack)
        inside = stack[place + 1 :]
        del stack[place:]
        return inside

    def abandoned(self, at: Any) -> list[Call]:
        """Take calls that ended and were never closed off the stack of this thread.

        An exception may come before the line that closes them, and PyTorch calls no hook after one.
        They are known by Python's frame; `at` is the innermost one that may run one of them.
        """
        stack, running = self.stack(), set()
        for frame in frames_from(at):
            if stack[-1].python in (frame, known_by(frame)):
                return []  # and so are those below, as they were when it began
            running |= {frame, known_by(frame)}
        ended = [call for call in stack if call.python not in running]
        if ended:
            stack[:] = [call for call in stack if call not in ended]
        return ended

    def abandoned_steps(self) -> list[Call]:
        """The steps of all threads that ended and were never closed; they stay on their stacks.

        What begins after the first look is none of them.
        """
        known = [(step, step.python) for step in list(self.steps) if step.python is not None]
        frames = sys._current_frames() if known else {}
        running = set()
        for thread in {step.thread for step, _ in known}:
            for frame in frames_from(frames.get(thread)):
                running |= {frame, known_by(frame)}
        return [step for step, python in known if python not in running]


def frames_from(at: Any) -> Iterator[Any]:
    """The Python frame `at`, if it is one, and those that called it."""
    while at is not None:
        yield at
        at = at.f_back


def outermost(call: Call) -> Call:
    """The outermost call that contains this one."""
    while call.parent is not None:
        call = call.parent
    return call
