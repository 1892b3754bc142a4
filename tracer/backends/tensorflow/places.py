"""Find the place, the replica and the parent of a call.

`locate` does this when a call begins, and `parent_of` when a function with a block is called, both
on the calling thread. This module keeps no state and takes no lock. The fields it reads from calls
of other threads (place, replica, `strategy.run`, thread) were written before these calls joined
`CallsUnderWay.steps`, and do not change.

The parent of a call is in the same **region**: eager mode, or the graph of one function with its
branches and loops. The enclosing step of a function is not known while it is traced, as it may be
called from anywhere later: see `tracer.backends.tensorflow.blocks`.
"""

from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tracer.backends.tensorflow import callers, compat
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


@dataclass(slots=True)
class Extra:
    """Data of a call in a graph or under a strategy: `Call.extra`."""

    start: int
    """How many ops the graph had when the call began."""
    run: int
    """The `strategy.run` in which the call began: see `callers.runs_under_way`."""
    stamps: dict[tuple[int, int], Any] = field(default_factory=dict)
    """For a step in a graph, by replica and flags, its stamp and the stamps of its parts."""
    gradient: Any = None
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
        runs, threads = callers.runs_under_way() if distributed else (set(), set())
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
