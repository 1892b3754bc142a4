"""Tracks the calls under way of intercepted methods, and numbers what they do. No framework.

A `Call` lives from the beginning to the end of the method. Each thread has a stack of calls; steps
under way are known to all threads, because a strategy runs parts of a step on other threads. These
threads read the place of the step, add their sites to it and take its number; only the thread that
made a call writes the rest. The traced methods and `tracer.core.recorder` make calls, and
`tracer.backends.tensorflow.places` finds the parent of each.

A site is what a call does: a method of an optimizer on a variable of a replica. A block lists the
numbers of its sites, so counting an execution does not examine them. Sites are never forgotten.
"""

import sys
import threading
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple
from weakref import ref

from tracer.core import locks
from tracer.core.call_paths import frames_from
from tracer.model.records import Kind, Role

CallRole = Literal["step", "group", "apply"]
"""The kind of method called: step, group or apply method (see `tracer.kinds`)."""


class Place(NamedTuple):
    """Where a call's ops go: all None if eager. v1 branches share `graph`, not `branch`."""

    graph: Any
    branch: Any
    region: Any
    """The graph of the function that is called as a whole: see `compat.called_graph`."""


EAGER = Place(None, None, None)


class Call:
    """A call of an intercepted method that is under way; must not refer to itself.

    A `Step` and an `Apply` are such calls; a group method has a call of its own too.
    `Recorder.open` or `open_apply` pushes the call on the stack of its thread; `close` or
    `close_apply` pops it. `CallsUnderWay.abandoned` finds calls that ended without either, for
    example by Ctrl-C.
    """

    __slots__ = (
        "applying",
        "distributed",
        "extra",
        "own",
        "parent",
        "place",
        "python",
        "recorder",
        "replica",
        "result",
        "site_notes",
        "sites",
        "thread",
    )

    role: CallRole = "group"
    recorder: Any
    """The recorder that counts the call (it imports this module); None until the call is opened."""
    place: Place
    replica: int
    distributed: bool
    """Whether the call was made under a strategy."""
    parent: "Call | None"
    applying: int | None
    """The site of the apply method that the call is, is inside of, or has under way (see `Token`):
    calls in it are no updates of their own. None outside of apply methods."""
    own: Sequence[int]
    """The sites of the call itself: one for a step, one for each variable of an apply method."""
    sites: list[int]
    """The sites of the calls inside; `own` is added last, when the call has ended."""
    site_notes: list[Any]
    """A backend's notes on the calls inside; they go to the parent with the sites."""
    result: Any
    python: Any
    """The Python frame of the method while it runs, or its identity: see `known_by`."""
    extra: Any
    """The backend's own data about the call, in a class of the backend; None if it has none."""
    thread: int

    @property
    def interrupted(self) -> str:
        """The note for the trace if an exception ends the call unnoticed; empty for none."""
        return "a call was interrupted: what it ran before that is not counted"


class Step(Call):
    """A call of a step method."""

    __slots__ = ("before", "numbers", "path")

    role = "step"
    path: int | None
    """The number of the path to the step in eager mode: see `tracer.core.call_paths`."""
    numbers: dict[int, int]
    """The numbers of a step in eager mode by replica, as far as requested; a step in a
    cross-replica context has one for each replica. Before the step ends, only functions that it
    calls request them."""
    before: Any
    """The values of the variables before the step, if effects are compared (`Effects`)."""


class Apply(Call):
    """A call of an apply method."""

    __slots__ = ("variable",)

    role = "apply"
    variable: Any
    """The variable, if there is only one."""


Token = tuple[Call, int] | Apply
"""What `Recorder.open_apply` returns for `close_apply`.

Training in eager mode waits for each call of an apply method. So a call on a known variable (after
the first step, all are known) has no `Apply`: the token is the call around it, with the site.
"""


def start_call(
    call: Call, place: Place, replica: int, parent: Call | None, *, distributed: bool = False
) -> bool:
    """Set the place and the parent of a new call.

    `distributed` if a strategy was entered. Returns False for a group method that adds nothing to
    its parent: the parent is below it on the stack of this thread, in the same place.
    """
    call.place = place
    call.replica = replica
    call.distributed = distributed
    call.parent = parent
    call.applying = None if parent is None else parent.applying
    call.own, call.sites, call.site_notes = (), [], []
    call.result = call.python = call.extra = None
    call.thread = threading.get_ident()
    if parent is None or call.role != "group":
        return True
    return parent.thread != call.thread or parent.place != place


def known_by(python: Any) -> tuple[int, int]:
    """Identify a Python frame without keeping it alive.

    A later frame may reuse the `id`, but then has other code.
    """
    return id(python), id(python.f_code)


class CallsUnderWay:
    """The stack of calls of each thread, and the steps under way on all threads."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        """Each change of the list is atomic; readers copy it."""
        self.of_thread = threading.local()
        """Has this thread's `stack`, once there is one."""

    def stack(self) -> list[Call]:
        """The calls of this thread, innermost last."""
        try:
            stack: list[Call] = self.of_thread.stack
        except AttributeError:
            stack = self.of_thread.stack = []
        return stack

    def take_off(self, call: Call) -> Sequence[Call]:
        """Remove an ended call from the stack of this thread; returns the calls above it.

        An exception ended those calls before they were closed.
        """
        stack = self.stack()
        if stack and stack[-1] is call:
            stack.pop()
            return ()
        place = stack.index(call) if call in stack else len(stack)
        inside = stack[place + 1 :]
        del stack[place:]
        return inside

    def abandoned(self, at: object) -> list[Call]:
        """Remove ended calls that were never closed from this thread's stack; returns them.

        An exception may skip the line that closes a call, and PyTorch then calls no hook. Python
        frames show which calls still run; `at` is the innermost frame that may run one.
        """
        stack, running = self.stack(), set()
        for frame in frames_from(at):
            names = frame, known_by(frame)
            if stack[-1].python in names:
                return []  # and so do the calls below, as they did when it began
            running |= {*names}
        ended = [call for call in stack if call.python not in running]
        if ended:
            stack[:] = [call for call in stack if call not in ended]
        return ended

    def abandoned_steps(self) -> list[Step]:
        """The steps of all threads that ended but were never closed; they stay on their stacks.

        Steps that begin during the search are not among them.
        """
        known = [(step, step.python) for step in list(self.steps) if step.python is not None]
        frames = sys._current_frames() if known else {}
        running = set()
        for thread in {step.thread for step, _ in known}:
            for frame in frames_from(frames.get(thread)):
                running |= {frame, known_by(frame)}
        return [step for step, python in known if python not in running]


def outermost(call: Call) -> Call:
    """The outermost call around this one, or the call itself."""
    while call.parent is not None:
        call = call.parent
    return call


class Site(NamedTuple):
    """The counted properties of a method call."""

    optimizer: int
    method: str
    role: Role
    kind: Kind | None
    variable: int | None
    replica: int


class SiteTable:
    """The sites of one root optimizer, and their Python calls that no block counts."""

    def __init__(self) -> None:
        self.sites: list[Site] = []
        self.calls: list[list[int]] = []
        """For each site, how many of its calls [failed in eager mode, were traced]."""
        self.of_objects: dict[tuple[Any, ...], tuple[ref[Any], int]] = {}
        """Known variables in eager mode, for speed.

        The key is the variable's `id` and the fields of its site; compare the object as well.
        """
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._lock = locks.new_lock("rows")

    def number(
        self,
        optimizer: int,
        method: str,
        role: Role,
        kind: Kind | None = None,
        variable: int | None = None,
        replica: int = 0,
    ) -> int:
        """Return the number of a site; the first request assigns it."""
        fields = (optimizer, method, role, kind, variable, replica)
        number = self._numbers.get(fields)
        if number is None:
            with self._lock:
                number = self._numbers.get(fields)
                if number is None:  # a signal handler may raise between two lines
                    number = len(self.sites)
                    self.calls[number:] = [[0, 0]]
                    self.sites.append(Site(*fields))
                    self._numbers[fields] = number
        return number

    def called(self, site: int, *, tracing: bool) -> None:
        """Count a call while tracing, or one in eager mode that failed: its block counts others."""
        with self._lock:
            self.calls[site][tracing] += 1
