"""Find the callers of TensorFlow functions on Python's stack, while tracing and at each call.

`tracer.core.callers` uses the results. A region here is the graph of one function with its branches
and loops.

`MirroredStrategy` runs each replica in its own thread. The stack of such a thread is joined to that
of the thread that started it and waits for it.
"""

import sys
from collections.abc import Callable, Hashable, Sequence, Set
from threading import get_ident
from time import perf_counter
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
    """The callers of one root optimizer and of functions with its blocks; thread-safe."""

    def __init__(self, threads: Set[int]) -> None:
        """`threads` are all threads that ever called a function; the set keeps growing."""
        super().__init__(functions.author_of, lambda: not functions.any_is_inside(threads))
        self._definitions = Definitions()

    def here(self, frame: FrameType | None, distributed: bool, end: Hashable = None) -> int:
        """The path to an eager call by `frame`, of this thread; `end` tells apart what it calls."""
        if distributed:
            return self.paths.of(frames_around(frame))
        return self.paths.above(frame, end)

    def inside(self, graph: Any, sites: Sequence[int]) -> tuple[int, str, int]:
        """The last fields of a `CountedBlock`: the place of a block that this thread traces.

        `graph` is the graph of its region; `sites` were called in the block.
        """
        frames = frames_around(sys._getframe(1))
        traced = traced_in(frames)
        own = next((place for each, place in traced if each is graph), len(frames))
        path = self.paths.of(frames[:own], outermost=False)
        whole = self.paths.number(self._lines_to(frames, traced))
        self._note_traced(sites, whole)
        return path, compat.function_name(graph), whole

    def definition(self, root: Any) -> tuple[Definition, int]:
        """The definition of the outermost function, with the graph `root`, that this thread traces,
        and the path of its call.
        """
        frames = frames_around(sys._getframe(1))
        lines = self._lines_to(frames, traced_in(frames))
        begins = next((n for n, line in enumerate(lines, start=1) if line.graph), len(lines))
        return self._definitions.of(root, frames), self.paths.number(lines[:begins])

    def in_session(self, sites: Sequence[int]) -> int:
        """The path to a block that this thread adds to the graph of a Session."""
        lines = self.lines(self.paths.of(frames_around(sys._getframe(1))))
        path = self.paths.number([Line(SESSION_GRAPH, graph=True), *lines]) if lines else UNKNOWN
        self._note_traced(sites, path)
        return path

    def called_in(self, region: str) -> None:
        """Note a call of a function in another one, which this thread traces."""
        frames = frames_around(sys._getframe(1))
        for graph, place in traced_in(frames)[:1]:
            path = self.paths.of(frames[:place], outermost=False)
            self.called_inside(region, compat.function_name(graph), path)

    def called_from_here(
        self, region: str, replica: int, number: Callable[[], int], same_call: "SameCall | None"
    ) -> None:
        """Note that a function is about to run, or a dataset to be made, in eager mode, in no step.

        `number` returns the number of the next step. `same_call` stores the call. The captures of a
        dataset's functions are evaluated once (`data/ops/map_op.py`, `captured_inputs`).
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
        """The whole path of a graph being traced, from the call that traces it inwards."""
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
    """True if a function is called by the same instructions as before, outside all steps.

    This runs at each call of a function and must be fast; it is nearly always True. Frames of
    TensorFlow between the call and the question are skipped, as they do not identify the caller.
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
        """`under_way` are the calls of the recorder; `threads` as in `Callers`.

        Each such call runs `called`, and `look` from the `next_look` of the counters on.
        """
        self._callers, self._threads, self._called = callers, threads, called
        self._counters, self._look = counters, look
        self._steps, self._stack = under_way.steps, under_way.stack
        self.known: tuple[int, int, Any] = (-1, 0, ())
        """The number of changes of the callers when the call was stored; how many frames outside
        this one it was made; and its stack.
        """

    def __call__(self) -> bool:
        """True if the call is the same; called where TensorFlow evaluates the captures."""
        changes, depth, stack = self.known
        if changes != self._callers.changes or self._steps or get_ident() not in self._threads:
            return False
        if self._stack():  # an apply method outside every step
            return False
        try:  # inlines `compat.in_eager`
            if not contexts._context._thread_local_data.is_eager:
                return False
            if not is_stack(stack, sys._getframe(depth)):
                return False
        except (AttributeError, ValueError):  # there is no context, or the stack is not that deep
            return False
        self._called()
        if perf_counter() >= self._counters.next_look:
            self._look()
        return True


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


_CALLING = ("tracer.backends.tensorflow.", "tensorflow.python.eager.", "tensorflow.python.util.")
"""The modules whose frames are between the call of a function and the evaluation of captures."""
