"""Find the paths to TensorFlow's blocks on Python's stack, in eager mode and while tracing.

`MirroredStrategy` runs each replica in its own thread. The stack of such a thread is joined to that
of the thread that started it and waits for it.
"""

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

from tracer.backends.tensorflow import compat, functions
from tracer.backends.tensorflow.stacks import frames_around, outermost_tracing
from tracer.backends.tensorflow.tracings import Definitions
from tracer.core.call_paths import UNKNOWN, Paths
from tracer.core.late_wrap import SESSION_GRAPH
from tracer.core.tracings import Definition
from tracer.model.records import Line


class Callers(Paths):
    """The paths of one root optimizer and of functions with its blocks; thread-safe."""

    def __init__(self) -> None:
        super().__init__(functions.author_of)
        self._definitions = Definitions()

    def here(self, frame: FrameType | None, distributed: bool) -> int:
        """The path to an eager call by `frame`, of this thread."""
        return self.of(frames_around(frame)) if distributed else self.above(frame)

    def inside(self, sites: Sequence[int]) -> int:
        """The path to a block that this thread traces into a function, from calls of `sites`.

        It is the line that traces the outermost function, this function, and the line in it.
        """
        frames = frames_around(sys._getframe(1))
        place = outermost_tracing(frames)
        outermost = compat.graphs_around(compat.current_graph())[-1]
        function = Line(compat.function_name(outermost), graph=True)
        around, within = self.of(frames[place + 1 :]), self.of(frames[:place])
        path = self.number([*self.lines(around), function, *self.lines(within)])
        self._note_traced(sites, path)
        return path

    def definition(self, root: Any) -> tuple[Definition, int]:
        """The definition of the outermost function, with the graph `root`, that this thread traces,
        and the path of its call.
        """
        frames = frames_around(sys._getframe(1))
        around = frames[outermost_tracing(frames) + 1 :]
        return self._definitions.of(root, frames), self.of(around)

    def in_session(self, sites: Sequence[int]) -> int:
        """The path to a block that this thread adds to the graph of a Session."""
        lines = self.lines(self.of(frames_around(sys._getframe(1))))
        path = self.number([Line(SESSION_GRAPH, graph=True), *lines]) if lines else UNKNOWN
        self._note_traced(sites, path)
        return path

    def _note_traced(self, sites: Sequence[int], path: int) -> None:
        with self._lock:
            for site in sites:
                self.traced[site, path] += 1
