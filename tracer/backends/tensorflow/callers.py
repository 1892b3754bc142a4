"""Find the paths to TensorFlow's blocks on Python's stack, in eager mode and while tracing.

`MirroredStrategy` runs each replica in its own thread. The stack of such a thread is joined to that
of the thread that started it and waits for it.
"""

import sys
import threading
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
from tracer.core import callers
from tracer.core.call_paths import UNKNOWN
from tracer.core.callers import Lines
from tracer.core.calls import CallsUnderWay
from tracer.core.late_wrap import SESSION_GRAPH
from tracer.core.tracings import Definition
from tracer.model.records import Line


class Callers(callers.Callers):
    """The paths of one root optimizer and of functions with its blocks; thread-safe."""

    def __init__(self) -> None:
        super().__init__(functions.author_of)
        self._definitions = Definitions()
        self._lock = threading.Lock()

    def here(self, frame: FrameType | None, distributed: bool, end: Hashable = None) -> int:
        """The path to an eager call by `frame`, of this thread; `end` tells apart what it calls."""
        if distributed:
            return self.paths.of(frames_around(frame))
        return self.paths.above(frame, end)

    def inside(self, sites: Sequence[int]) -> int:
        """The path to a block that this thread traces into a function, from calls of `sites`."""
        frames = frames_around(sys._getframe(1))
        path = self.paths.number(self._lines_to(frames, traced_in(frames)))
        self._note_traced(sites, path)
        return path

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

    def _lines_to(self, frames: Sequence[FrameType], traced: Sequence[tuple[Any, int]]) -> Lines:
        """The whole path of a graph being traced, from the call that traces it inwards."""
        lines: Lines = ()
        end = len(frames)
        for graph, place in reversed(traced):
            outermost = end == len(frames)
            lines += self.lines(self.paths.of(frames[place + 1 : end], outermost))
            lines += (_begin_of(compat.function_name(graph)),)
            end = place
        return lines + self.lines(self.paths.of(frames[:end], outermost=not traced))

    def _note_traced(self, sites: Sequence[int], path: int) -> None:
        with self._lock:
            for site in sites:
                self.traced[site, path] += 1


class CalledAlone:
    """True if a function is called in eager mode, with no step or apply method under way.

    This runs at each call of a function and must be fast; it is nearly always True.
    """

    def __init__(
        self,
        under_way: CallsUnderWay,
        threads: Set[int],
        called: Callable[[], None],
        counters: LedgerCounters,
        look: Callable[[], None],
    ) -> None:
        """`under_way` are the calls of the recorder; `threads` are known to call functions.

        Each such call runs `called`, and `look` from the `next_look` of the counters on.
        """
        self._threads, self._called = threads, called
        self._counters, self._look = counters, look
        self._steps, self._stack = under_way.steps, under_way.stack

    def __call__(self) -> bool:
        """Answer for this call, where TensorFlow evaluates the captures of the function."""
        if self._steps or get_ident() not in self._threads or self._stack():
            return False
        try:  # inlines `compat.in_eager`
            if not contexts._context._thread_local_data.is_eager:
                return False
        except AttributeError:  # there is no context
            return False
        self._called()
        if perf_counter() >= self._counters.next_look:
            self._look()
        return True


def _begin_of(function: str) -> Line:
    """The line that marks the beginning of a function's graph."""
    return Line(function.rpartition("/")[2], graph=True)
