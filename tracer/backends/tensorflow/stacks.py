"""Python's stack as TensorFlow leaves it: over threads, and in parts where graphs are traced.

Under `MirroredStrategy` each replica runs in a thread of its own. Its stack is joined to that of
the thread that started it, which waits meanwhile.
"""

import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any, NamedTuple

from tracer.backends.tensorflow import compat, functions
from tracer.core.paths import frames_above


class Traced(NamedTuple):
    """A function that is being traced."""

    graph: Any
    place: int
    """That of the frame that traces it, in the stack."""


def frames_around(frame: FrameType | None) -> list[FrameType]:
    """The frames from one of this thread outwards, to the beginning of the program."""
    frames = frames_above(frame)
    thread: Any = threading.current_thread()
    coordinator = compat.replica_run()
    while coordinator is not None:
        starter = compat.started_by(coordinator)
        if starter is None:
            break
        number, waiting = starter
        frames += frames_above(waiting)
        thread = next((each for each in threading.enumerate() if each.ident == number), None)
        coordinator = getattr(thread, "coord", None)
    return frames


def traced_in(frames: Sequence[FrameType]) -> list[Traced]:
    """The functions that these frames, the innermost first, are tracing, the innermost first.

    Branches and loops are parts of the function that they stand in.
    """
    return [
        Traced(graph, place)
        for place, frame in enumerate(frames)
        if (graph := functions.graph_traced_by(frame)) is not None
        and compat.called_graph(graph) is graph
    ]
