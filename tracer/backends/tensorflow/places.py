"""Find the place, the replica, the parent and the path of a call, and what a graph is traced for.

`locate` does this when a call begins, and `parent_of` when a function with a block is called, both
on the calling thread. This module keeps no state and takes no lock. The fields it reads from calls
of other threads (place, replica, `strategy.run`, thread) were written before these calls joined
`CallsUnderWay.steps`, and do not change.

The parent of a call is in the same **region**: eager mode, or the graph of one function with its
branches and loops. The enclosing step of a function is not known while it is traced, as it may be
called from anywhere later: see `tracer.backends.tensorflow.blocks`.

`MirroredStrategy` runs each replica in its own thread. The stack of such a thread is joined to that
of the thread that started it and waits for it.
"""

import re
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import tracing_compilation

from tracer.backends.tensorflow import compat, functions
from tracer.core.call_paths import Paths, frames_from
from tracer.core.calls import (
    EAGER,
    Call,
    CallRole,
    CallsUnderWay,
    Place,
    Step,
    outermost,
    start_call,
)
from tracer.core.late_wrap import SESSION_GRAPH
from tracer.core.tracings import Definition
from tracer.model.records import Line


@dataclass(slots=True)
class Extra:
    """Data of a call in a graph or under a strategy: `Call.extra`."""

    start: int
    """How many ops the graph had when the call began."""
    run: int
    """The `strategy.run` in which the call began: see `runs_under_way`."""
    stamps: dict[tuple[int, int], tf.Tensor] = field(default_factory=dict)
    """For a step in a graph, by replica and flags, its stamp and the stamps of its parts."""
    gradient: tf.Tensor | None = None
    """The first gradient of a step in a graph; None if there is none yet. The step begins when this
    gradient is computed: usually the gradient of the first layer, which needs all data and comes
    last. A gradient that needs no data (of the last bias, if the loss is a mean) is computed even
    if the data never arrive."""
    counts: bool = True
    """False for a step in the graph of a Session that no op can count."""


def locate(call: Call, stack: list[Call], calls_under_way: CallsUnderWay) -> bool:
    """Set the place, replica and parent of a new call.

    `stack` is this thread's, without the new call. Returns the result of `start_call`.
    """
    top = stack[-1] if stack else None
    role, place = call.role, current_place()
    replica, parent = 0, None
    if top is not None and not top.distributed and top.place == place:
        distributed, parent = False, top
        replica = _replica_of(role, top, distributed) if role == "apply" else top.replica
    else:
        distributed = tf.distribute.has_strategy()
        if distributed or top is not None or place is not EAGER:
            replica = _replica_of(role, top, distributed)
            parent = parent_of(role, place, replica, stack, distributed, calls_under_way)
    is_own = start_call(call, place, replica, parent, distributed=distributed)
    if is_own and (place is not EAGER or distributed):
        start = 0 if place is EAGER else place.graph.num_operations()
        call.extra = Extra(start, id(compat.replica_run()) if distributed else 0)
    return is_own


def _replica_of(role: CallRole, top: Call | None, distributed: bool) -> int:
    number = compat.update_replica_id() if role == "apply" else None
    if number is None and distributed:
        number = compat.replica_id()
    if number is None:  # no strategy, or a call for all replicas
        number = 0 if top is None else top.replica
    return number


def parent_of(
    role: CallRole,
    place: Place,
    replica: int,
    stack: list[Call],
    distributed: bool,
    calls_under_way: CallsUnderWay,
) -> Call | None:
    """The parent of a call: a call of its replica in its region; None without one.

    It may be on another thread: a strategy runs updates, and the inner optimizer of a loss scale,
    on other threads than their `apply_gradients`. In a graph, the step's graph is this one or an
    outer one, which no other thread traces. In eager mode, this thread works on behalf of the step.
    """
    region = place.region
    own = next((call for call in reversed(stack) if call.place.region is region), None)
    if own is not None and own.role != "group":
        return own
    steps = [step for step in list(calls_under_way.steps) if step.place.region is region]
    if steps and place.graph is not None:
        around = {id(graph) for graph in compat.graphs_around(place.graph)}
        steps = [step for step in steps if id(step.place.graph) in around]
    elif steps:
        runs, threads = runs_under_way() if distributed else (set(), set())
        steps = [step for step in steps if _run_of(step) in runs or step.thread in threads]
    mine = [step for step in steps if step.replica == replica]
    if own is not None:
        return next((step for step in reversed(mine) if step.place == place), own)
    candidates = mine if role == "step" else mine or steps
    return candidates[-1] if candidates else None


def _run_of(call: Call) -> int:
    return getattr(call.extra, "run", 0)


def step_around(call: Call | None, replica: int, calls_under_way: CallsUnderWay) -> Step | None:
    """The step that encloses what `call` calls for `replica`, in the region of `call`."""
    own = None if call is None else outermost(call)
    if not isinstance(own, Step):
        return None
    of_replica = (  # each replica has its own step, or one serves all
        step
        for step in list(calls_under_way.steps)
        if step.parent is None
        and step.replica == replica
        and step.place.region is own.place.region
        and _run_of(step) == _run_of(own)
    )
    return own if own.replica == replica else next(of_replica, own)


def current_place() -> Place:
    """The place of calls that this thread makes now."""
    if tf.executing_eagerly():
        return EAGER
    graph = tf.compat.v1.get_default_graph()
    branch = None if isinstance(graph, compat.FuncGraph) else graph._get_control_flow_context()
    return Place(graph, branch, compat.called_graph(graph))


# The Python frames around a call.


def stacks_around(
    frame: FrameType | None, thread: threading.Thread | None = None
) -> Iterator[tuple[int, list[FrameType]]]:
    """Each thread with its stack, from a frame of this thread outwards: then the thread that
    started this one, from its waiting frame, and so on.
    """
    thread = thread or threading.current_thread()
    yield thread.ident or 0, [*frames_from(frame)]
    run = compat.replica_run(thread)
    waiting = None if run is None else _waiting_for(run)
    if waiting is not None:
        yield from stacks_around(*waiting)


def _waiting_for(run: object) -> tuple[FrameType, threading.Thread] | None:
    """The waiting frame of the thread that started the threads of this `strategy.run`."""
    threads = {thread.ident: thread for thread in threading.enumerate()}
    for ident, stack in functions.stacks().items():
        for frame in stack:
            if compat.run_in(frame) is run and ident in threads:
                return frame, threads[ident]
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

    def definition(self, root: tf.Graph) -> Definition:
        """The definition of the outermost function, with the graph `root`, which is traced now."""
        frames = frames_around(sys._getframe(1))
        path = self.of(frames[outermost_tracing(frames) + 1 :])
        values = next((each.f_locals for each in reversed(frames) if each.f_code is _DEFINE), {})
        kind = values.get("target_func_type")  # perhaps more general than the call's
        parameters = getattr(kind, "parameters", {})
        arguments = {name: _shown(each.type_constraint) for name, each in parameters.items()}
        return Definition(compat.function_name(root), arguments, path)


# The arguments of a tracing.

_DEFINE = tracing_compilation._maybe_define_function.__code__


_TENSOR = re.compile(r"TensorSpec\(shape=\(?(.*?),?\)?, dtype=tf\.(\w+), name=[^()]*\)")
_LONGEST = 200


def _shown(kind: Any) -> str:
    """A trace type (`core/function/trace_type/default_types.py`) or a `tf.TypeSpec` as text."""
    if type(kind).__name__ == "Weakref":
        return f"{type(kind._ref()).__name__} at {id(kind._ref()):#x}"
    return _TENSOR.sub(r"\2[\1]", repr(getattr(kind, "value", kind)))[:_LONGEST]
