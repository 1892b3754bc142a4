"""Where a call is made, which replica it is of, and which call it is part of.

The recorder asks as a call begins (`locate`), and the counting of blocks as a function is called
(`parent_of`): both on the thread that makes the call. Nothing is kept here, and no lock is taken.
What is read of the calls of other threads (place, replica, `strategy.run`, thread) was written
before they joined `CallsUnderWay.steps`, and stays as it is.

The parent of a call is in the same **region**: in eager mode, or in the graph of one function with
its branches and loops. What a function is part of is not decided when it is traced, for it may be
called from anywhere later: see `tracer.backends.tensorflow.blocks`.
"""

from typing import Any

from tracer.backends.tensorflow import compat, stacks
from tracer.core.calls import (
    EAGER,
    Call,
    CallRole,
    CallsUnderWay,
    Place,
    outermost,
    start_call,
)


class Extra:
    """What is noted of a call in a graph, or under a strategy: `Call.extra`."""

    __slots__ = ("run", "stamps", "start")

    def __init__(self, start: int, run: int) -> None:
        self.start = start
        """How many operations the graph had before."""
        self.run = run
        """The call of `strategy.run` in which it began: see `stacks.runs_under_way`."""
        self.stamps: dict[tuple[int, int], Any] = {}
        """Of a step in a graph, by replica and flags its stamp, and that of what is part of it."""


def locate(call: Call, role: CallRole, stack: list[Call], calls_under_way: CallsUnderWay) -> bool:
    """Write into a new call where it is made, and what it is part of.

    `stack` is that of this thread, on which the call is not yet. Returns as `start_call`.
    """
    top = stack[-1] if stack else None
    place = current_place()
    replica, parent = 0, None
    if top is not None and not top.distributed and top.place == place:
        distributed, parent = False, top
        replica = _replica_of(role, top, distributed) if role == "apply" else top.replica
    else:
        distributed = compat.has_strategy()
        if distributed or top is not None or place is not EAGER:
            replica = _replica_of(role, top, distributed)
            parent = parent_of(role, place, replica, stack, distributed, calls_under_way)
    is_own = start_call(call, role, place, replica, parent, distributed=distributed)
    if is_own and (place is not EAGER or distributed):
        start = 0 if place is EAGER else place.graph.num_operations()
        call.extra = Extra(start, id(compat.replica_run()) if distributed else 0)
    return is_own


def eager_replica(replica: int) -> int | None:
    """The replica that an apply method updates now, called in eager mode from a step of `replica`;
    None if it is not executed now.
    """
    if not compat.in_eager():
        return None
    number = compat.update_replica_id()
    return replica if number is None else number


def _run_of(call: Call) -> int:
    """The call of `strategy.run` in which it began, 0 if it began in none, or has ended."""
    extra = call.extra
    return 0 if extra is None else extra.run


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
    """The call that another one is part of: that of its replica in its region, if there is one.

    It may be on another thread. A strategy runs the update, and the inner optimizer of a loss
    scale, on other threads than the `apply_gradients` that asked for it. In a graph that step
    is the one whose graph is this one or around it: no other thread traces into it. In eager
    mode it is one on whose behalf this thread works.
    """
    region = place.region
    own = next((call for call in reversed(stack) if call.place.region is region), None)
    if own is not None and own.role != "group":
        return own
    steps: list[Call] = []
    active = list(calls_under_way.steps)
    if active and place.graph is not None:
        around = {id(graph) for graph in compat.graphs_around(place.graph)}
        steps = [
            step
            for step in active
            if step.place.region is region and id(step.place.graph) in around
        ]
    elif active and distributed:
        runs, threads = stacks.runs_under_way()
        steps = [
            step
            for step in active
            if step.place is EAGER and (_run_of(step) in runs or step.thread in threads)
        ]
    mine = [step for step in steps if step.replica == replica]
    if own is not None:
        return next((step for step in reversed(mine) if step.place == place), own)
    if role == "step":
        return mine[-1] if mine else None
    candidates = mine or steps
    return candidates[-1] if candidates else None


def step_around(call: Call, replica: int, calls_under_way: CallsUnderWay) -> Call | None:
    """The step that what is called from `call` for `replica` is part of, in its region."""
    own = outermost(call)
    if own.role != "step":
        return None
    of_replica = (  # each has a step of its own, or one serves all
        step
        for step in list(calls_under_way.steps)
        if step.parent is None
        and step.replica == replica
        and step.place.region is own.place.region
        and _run_of(step) == _run_of(own)
    )
    return own if own.replica == replica else next(of_replica, own)


def current_place() -> Place:
    """Where this thread's calls are made now."""
    return EAGER if compat.in_eager() else _place_of(compat.current_graph())


def _place_of(graph: Any) -> Place:
    branch = None if isinstance(graph, compat.FuncGraph) else graph._get_control_flow_context()
    return Place(graph, branch, compat.called_graph(graph))
