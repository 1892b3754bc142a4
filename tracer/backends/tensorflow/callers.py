"""Find the paths to TensorFlow's blocks on Python's stack, and for what arguments it traces.

`MirroredStrategy` runs each replica in its own thread. The stack of such a thread is joined to that
of the thread that started it and waits for it.
"""

import re
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import tracing_compilation

from tracer.backends.tensorflow import compat, functions
from tracer.core.call_paths import Paths, frames_from
from tracer.core.late_wrap import SESSION_GRAPH
from tracer.core.tracings import Arguments, Definition
from tracer.model.records import Line


def stacks_around(frame: FrameType | None) -> Iterator[tuple[int, list[FrameType]]]:
    """Each thread with its stack, from a frame of this thread outwards: then the thread that
    started this one, from its waiting frame, and so on.
    """
    thread = threading.current_thread()
    while True:
        frames = [*frames_from(frame)]
        yield thread.ident or 0, frames
        run = compat.replica_run(thread)
        waiting = None if run is None else _waiting_for(run)
        if waiting is None:
            return
        thread, frame = waiting


def _waiting_for(run: Any) -> tuple[threading.Thread, FrameType] | None:
    """The thread that started the threads of this `strategy.run`, and its waiting frame."""
    threads = {thread.ident: thread for thread in threading.enumerate()}
    for ident, stack in functions.stacks().items():
        for frame in stack:
            if compat.run_in(frame) is run and ident in threads:
                return threads[ident], frame
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


class Callers(Paths):
    """The paths of one root optimizer and of functions with its blocks; thread-safe."""

    def __init__(self) -> None:
        super().__init__(functions.author_of)

    def inside(self, sites: Sequence[int], in_session: bool) -> int:
        """The path to a block that this thread adds to a graph, from calls of `sites`.

        It is the line that traces the outermost function, this function, and the line in it. The
        path to a block in the graph of a Session begins with the graph.
        """
        frames = frames_around(sys._getframe(1))
        outermost = compat.graphs_around(tf.compat.v1.get_default_graph())[-1]
        name = SESSION_GRAPH if in_session else compat.function_name(outermost)
        place = len(frames) if in_session else outermost_tracing(frames)
        around, within = self.of(frames[place + 1 :]), self.of(frames[:place])
        lines = [*self.lines(around), Line(name, graph=True), *self.lines(within)]
        path = self.number(lines)
        with self._lock:
            for site in sites:
                self.traced[site, path] += 1
        return path

    def definition(self, root: Any) -> tuple[Definition, int | None]:
        """The definition of the outermost function, with the graph `root`, that this thread traces,
        and the path of its call.
        """
        frames, name = frames_around(sys._getframe(1)), compat.function_name(root)
        path = self.of(frames[outermost_tracing(frames) + 1 :])
        values = next((each.f_locals for each in reversed(frames) if each.f_code is _DEFINE), None)
        if values is None:
            return Definition(name, "", {}), path
        arguments = _arguments(values["target_func_type"])  # perhaps more general than the call's
        texts = (f"{part}: {_ADDRESS.sub('', text)}" for part, text in arguments.items())
        return Definition(name, ", ".join(texts), arguments), path


# The arguments of a tracing.

_DEFINE = tracing_compilation._maybe_define_function.__code__


def _arguments(kind: Any) -> Arguments:
    """The arguments that a function is traced for, from its TensorFlow function type."""
    return {name: _shown(parameter.type_constraint) for name, parameter in kind.parameters.items()}


_ADDRESS = re.compile(" at 0x[0-9a-f]+")
_TENSOR = re.compile(r"TensorSpec\(shape=\(?(.*?),?\)?, dtype=tf\.(\w+), name=[^()]*\)")
_LONGEST = 200


def _shown(kind: Any) -> str:
    """A trace type (`core/function/trace_type/default_types.py`) or a `tf.TypeSpec` as text."""
    if type(kind).__name__ == "Weakref":
        return f"{type(kind._ref()).__name__} at {id(kind._ref()):#x}"
    return _TENSOR.sub(r"\2[\1]", repr(getattr(kind, "value", kind)))[:_LONGEST]
