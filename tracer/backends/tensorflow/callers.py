"""Who calls a function of TensorFlow: read from Python's stack, when it is traced and at each call.

What is done with it stands in `tracer.core.callers`; a region is here the graph of one function
with its branches and loops.

Under `MirroredStrategy` each replica runs in a thread of its own. Its stack is joined to that of
the thread that started it, which waits meanwhile.
"""

import sys
from collections.abc import Callable, Hashable, Sequence, Set
from threading import get_ident
from types import FrameType
from typing import Any

from tracer.backends.tensorflow import compat, functions
from tracer.backends.tensorflow.compat import contexts
from tracer.backends.tensorflow.counters import LedgerCounters
from tracer.backends.tensorflow.stacks import frames_around, traced_in
from tracer.backends.tensorflow.tracings import Definitions
from tracer.core.call_paths import UNKNOWN, is_stack, stack_above
from tracer.core.callers import FunctionCallers, Lines, begin_of
from tracer.core.calls import CallsUnderWay
from tracer.core.late_wrap import SESSION_GRAPH
from tracer.core.tracings import Definition
from tracer.model.records import Line


class Callers(FunctionCallers):
    """The callers of one root optimizer and of the functions with its blocks; thread-safe."""

    def __init__(self, threads: Set[int]) -> None:
        """`threads` are those that ever called a function; it goes on growing."""
        super().__init__(functions.author_of, lambda: not functions.any_is_inside(threads))
        self._definitions = Definitions()

    def here(self, frame: FrameType | None, distributed: bool, end: Hashable = None) -> int:
        """The path to a call in eager mode that `frame`, of this thread, makes.

        `end` is what it calls, if it may be this or that.
        """
        if distributed:
            return self.paths.of(frames_around(frame))
        return self.paths.above(frame, end)

    def inside(self, graph: Any, sites: Sequence[int]) -> tuple[int, str, int]:
        """Where a block is that is traced by this thread: the last fields of a `CountedBlock`.

        `graph` is that of the region; `sites` were called in the block.
        """
        frames = frames_around(sys._getframe(1))
        traced = traced_in(frames)
        own = next((place for each, place in traced if each is graph), len(frames))
        path = self.paths.of(frames[:own], outermost=False)
        whole = self.paths.number(self._lines_to(frames, traced))
        self._note_traced(sites, whole)
        return path, compat.function_name(graph), whole

    def definition(self, root: Any) -> tuple[Definition, int]:
        """What the outermost function, with the graph `root`, is traced for by this thread, and
        the path of the call.
        """
        frames = frames_around(sys._getframe(1))
        lines = self._lines_to(frames, traced_in(frames))
        begins = next((n for n, line in enumerate(lines, start=1) if line.graph), len(lines))
        return self._definitions.of(root, frames), self.paths.number(lines[:begins])

    def in_session(self, sites: Sequence[int]) -> int:
        """The path to a block that is built into the graph of a Session by this thread."""
        lines = self.lines(self.paths.of(frames_around(sys._getframe(1))))
        path = self.paths.number([Line(SESSION_GRAPH, graph=True), *lines]) if lines else UNKNOWN
        self._note_traced(sites, path)
        return path

    def called_in(self, region: str) -> None:
        """A function is called while this thread traces another one."""
        frames = frames_around(sys._getframe(1))
        for graph, place in traced_in(frames)[:1]:
            path = self.paths.of(frames[:place], outermost=False)
            self.called_inside(region, compat.function_name(graph), path)

    def called_from_here(
        self, region: str, replica: int, number: Callable[[], int], same_call: "SameCall | None"
    ) -> None:
        """A function is about to run, or a dataset is made, in eager mode and in no step.

        `number` gives that of the next step. The call is noted as `same_call`. What a dataset runs
        has captured is asked for once (`data/ops/map_op.py`, `captured_inputs`).
        """
        frame, depth = sys._getframe(1), 0
        changes, distributed = self.changes, compat.replica_run() is not None
        path = self.here(frame, distributed)
        while _module_of(frame).startswith(_CALLING) and frame.f_back is not None:
            frame, depth = frame.f_back, depth + 1
        if _module_of(frame).startswith("tensorflow.python.data."):
            self.passed_to_dataset(region, replica, path, number)
        elif self.called(region, replica, path, number) and same_call and not distributed:
            same_call.known = changes, depth, stack_above(frame)

    def _lines_to(self, frames: Sequence[FrameType], traced: Sequence[tuple[Any, int]]) -> Lines:
        """The whole path of what is traced, from the call that traced it on."""
        lines: Lines = ()
        end = len(frames)
        for graph, place in reversed(traced):
            outermost = end == len(frames)
            lines += self.lines(self.paths.of(frames[place + 1 : end], outermost))
            lines += (begin_of(compat.function_name(graph)),)
            end = place
        return lines + self.lines(self.paths.of(frames[:end], outermost=not traced))

    def _note_traced(self, sites: Sequence[int], path: int) -> None:
        with self._lock:
            for site in sites:
                self.traced[site, path] += 1


class SameCall:
    """Whether a function is called as it was before: by the same instructions, in no step.

    Training waits for the answer at each call of a function, and it is nearly always yes. Frames
    of TensorFlow between the call and what it asks are left out: they say nothing of the caller.
    """

    def __init__(
        self,
        callers: Callers,
        under_way: CallsUnderWay,
        threads: Set[int],
        called: Callable[[], None],
        counters: LedgerCounters,
        look: Callable[[], None],
    ) -> None:
        """`under_way` are the calls of the recorder, `threads` as in `Callers`.

        `called` is notified of each such call, and `look` after the `quiet_calls` of the counters.
        """
        self._callers, self._threads, self._called = callers, threads, called
        self._counters, self._look = counters, look
        self._steps, self._stack = under_way.steps, under_way.stack
        self.known: tuple[int, int, Any] = (-1, 0, ())
        """How often the callers had changed, and the stack that called; how many frames it is
        further out than what asks.
        """

    def __call__(self) -> bool:
        """Asked by the function that TensorFlow asks for what its function captured."""
        changes, depth, stack = self.known
        if changes != self._callers.changes or self._steps or get_ident() not in self._threads:
            return False
        if self._stack():  # an apply method that is part of no step
            return False
        try:  # what `compat.in_eager` asks, without its call
            if not contexts._context._thread_local_data.is_eager:
                return False
            if not is_stack(stack, sys._getframe(depth)):
                return False
        except (AttributeError, ValueError):  # there is no context, or so deep a stack
            return False
        self._called()
        if next(self._counters.quiet_calls, True):
            self._look()
        return True


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


_CALLING = ("tracer.backends.tensorflow.", "tensorflow.python.eager.", "tensorflow.python.util.")
"""The modules of what stands between the call of a function and what it is asked."""
