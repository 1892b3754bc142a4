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
from tracer.core.call_paths import Paths
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

    def inside(self, sites: Sequence[int], in_session: bool) -> int:
        """The path to a block that this thread adds to a graph, from calls of `sites`.

        It is the line that traces the outermost function, this function, and the line in it. The
        path to a block in the graph of a Session begins with the graph.
        """
        frames = frames_around(sys._getframe(1))
        outermost = compat.graphs_around(compat.current_graph())[-1]
        name = SESSION_GRAPH if in_session else compat.function_name(outermost)
        place = len(frames) if in_session else outermost_tracing(frames)
        around, within = self.of(frames[place + 1 :]), self.of(frames[:place])
        lines = [*self.lines(around), Line(name, graph=True), *self.lines(within)]
        path = self.number(lines)
        with self._lock:
            for site in sites:
                self.traced[site, path] += 1
        return path

    def definition(self, root: Any) -> tuple[Definition, int]:
        """The definition of the outermost function, with the graph `root`, that this thread traces,
        and the path of its call.
        """
        frames = frames_around(sys._getframe(1))
        around = frames[outermost_tracing(frames) + 1 :]
        return self._definitions.of(root, frames), self.of(around)
