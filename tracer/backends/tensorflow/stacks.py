"""Python's stack as TensorFlow leaves it: over threads, and in parts where graphs are traced.

Under `MirroredStrategy` each replica runs in a thread of its own. Its stack is joined to that of
the thread that started it, which waits meanwhile.
"""

import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple

from tracer.backends.tensorflow import compat, functions
from tracer.core.call_paths import frames_above


class Traced(NamedTuple):
    """A function that is being traced."""

    graph: Any
    place: int
    """That of the frame that traces it, in the stack."""


def stacks_around(frame: FrameType | None) -> Iterator[tuple[int, list[FrameType]]]:
    """From one frame of this thread outwards: each thread with its stack, and the one that started
    it, from the frame that waits for it.
    """
    thread = threading.current_thread()
    while True:
        frames = frames_above(frame)
        yield thread.ident or 0, frames
        run = compat.replica_run(thread)
        waiting = None if run is None else _waiting_for(run)
        if waiting is None:
            return
        thread, frame = waiting


def _waiting_for(run: Any) -> tuple[threading.Thread, FrameType] | None:
    """The thread that started those of this `strategy.run`, and the frame that waits for them."""
    stacks = sys._current_frames()
    # The frame of this call must not hold itself: it would hold all that the program works with.
    stacks.pop(threading.get_ident(), None)
    for thread in threading.enumerate():
        for frame in frames_above(stacks.get(thread.ident or 0)):
            if compat.run_in(frame) is run:
                return thread, frame
    return None


def frames_around(frame: FrameType | None) -> list[FrameType]:
    """The frames from one of this thread outwards, to the beginning of the program."""
    return [each for _, frames in stacks_around(frame) for each in frames]


def runs_under_way() -> tuple[set[int], set[int]]:
    """On whose behalf this thread works: the ids of `strategy.run` calls, and of threads."""
    stacks = list(stacks_around(sys._getframe(1)))
    runs = [compat.run_in(frame) for _, frames in stacks for frame in frames]
    known = {id(run) for run in (*runs, compat.replica_run()) if run is not None}
    return known, {thread for thread, _ in stacks}


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
