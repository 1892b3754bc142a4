"""Read Python's stack across threads, and divided where functions are traced.

`MirroredStrategy` runs each replica in its own thread. The stack of such a thread is joined to that
of the thread that started it and waits for it.
"""

import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from tracer.backends.tensorflow import compat, functions
from tracer.core.call_paths import frames_above


def stacks_around(frame: FrameType | None) -> Iterator[tuple[int, list[FrameType]]]:
    """Each thread with its stack, from a frame of this thread outwards: then the thread that
    started this one, from its waiting frame, and so on.
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
    """The thread that started the threads of this `strategy.run`, and its waiting frame."""
    stacks = sys._current_frames()
    # The frame of this call must not refer to itself: it would keep the program's objects alive.
    stacks.pop(threading.get_ident(), None)
    for thread in threading.enumerate():
        for frame in frames_above(stacks.get(thread.ident or 0)):
            if compat.run_in(frame) is run:
                return thread, frame
    return None


def frames_around(frame: FrameType | None) -> list[FrameType]:
    """All frames from a frame of this thread outwards, to the start of the program."""
    return [each for _, frames in stacks_around(frame) for each in frames]


def runs_under_way() -> tuple[set[int], set[int]]:
    """The `strategy.run` calls and the threads that this thread works for, as ids."""
    stacks = list(stacks_around(sys._getframe(1)))
    runs = [compat.run_in(frame) for _, frames in stacks for frame in frames]
    known = {id(run) for run in (*runs, compat.replica_run()) if run is not None}
    return known, {thread for thread, _ in stacks}


def outermost_tracing(frames: Sequence[FrameType]) -> int:
    """The position of the outermost of `frames`, innermost first, that traces; 0 if none does."""
    places = (n for n, frame in enumerate(frames) if functions.graph_traced_by(frame) is not None)
    return max(places, default=0)
