"""What one root optimizer did: its calls, its blocks and where they are counted.

A `Recorder` belongs to a root optimizer and the optimizers nested in it. `wrap` tells it of every
call; a *frame* is a call under way. A frame whose parent is in the same graph hands its sites to
the parent; a frame whose parent is in another graph, or that has none, closes a block: all that was
traced into this graph since executes as a whole, so it gets one counter. That one rule covers
`tf.function`, loops, branches, XLA and eager mode, where a step is the block.

A frame's parent is in the same **region**: in eager mode, or in the graph of one function with its
branches and loops. What a function is part of is not decided when it is traced, for it may be
called from anywhere later: each call of it asks (`Recorder.company`), and the graph counts by the
answer. See `tracer.recorder.tensorflow.ledger`.
"""

import sys
import threading
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any
from weakref import ref

from tracer.kinds import ApplyMethod
from tracer.model.records import Kind, Role
from tracer.recorder.frames import EAGER, CallsUnderWay, Frame, FrameRole, Place, applying
from tracer.recorder.optimizers import Optimizers
from tracer.recorder.reader import Reader
from tracer.recorder.sites import NOT_REQUESTED, Requested, SiteTable, object_key
from tracer.recorder.stamps import APPLYING, UNIT, WITHIN
from tracer.recorder.tensorflow import compat
from tracer.recorder.tensorflow.counters import (
    CountedBlock,
    Counters,
)
from tracer.recorder.tensorflow.graph_tracings import Tracings
from tracer.recorder.tensorflow.ledger import Ledger
from tracer.recorder.tensorflow.sessions import PartsOfSteps
from tracer.recorder.tensorflow.variables import VariableTable, device_of


class Recorder:
    """Everything that is known of one root optimizer; thread-safe."""

    def __init__(self) -> None:
        self.optimizers = Optimizers()
        self._variables = VariableTable(self.note)
        self._sites = SiteTable()
        self._devices: dict[int, str] = {}
        self._counters = Counters()
        self._tracings = Tracings()
        self._calls_under_way = CallsUnderWay()
        self._callers: set[int] = set()
        self._parts = PartsOfSteps(self._ran_without_step)
        self._notes: dict[str, None] = {}
        self.broken = False
        self.reader = Reader(
            optimizers=self.optimizers,
            variables=self._variables,
            sites=self._sites,
            calls_under_way=self._calls_under_way,
            counters=self._counters,
            tracings=self._tracings,
            callers=self._callers,
            devices=self._devices,
            notes=self._notes,
        )

    @property
    def used(self) -> bool:
        """Whether any call was seen."""
        return bool(self._sites.calls)

    def begin(self, optimizer: int) -> None:
        """Tracing begins, or goes on, with an optimizer that may have been used before."""
        self.optimizers.begin(optimizer, self._counters.handles())

    def end(self, optimizer: int) -> None:
        """Tracing of an optimizer ends; what was counted stays."""
        self.optimizers.end(optimizer)
        self._parts.stop()

    # Calls.

    def enter(self, frame: Frame, optimizer: int, method: str, role: FrameRole) -> None:
        """A call of a step or group method begins."""
        stack = self._calls_under_way.stack()
        if stack and role == "step":
            self._drop_interrupted()
        self._place(frame, role, stack)
        if role == "step":
            frame.site = self._sites.number(optimizer, method, "step", None, None, frame.replica)
            if frame.place is not EAGER:
                self._sites.traced(frame.site)
            self._calls_under_way.steps.append(frame)
            if frame.distributed and not self.reader.where.strategy:
                self.reader.where = compat.surroundings()
        stack.append(frame)

    def enter_apply(
        self, optimizer: int, apply: ApplyMethod, gradient: Any, variable: Any
    ) -> Frame | None:
        """A call of an apply method begins, with this gradient on this variable.

        Returns the frame to leave it by; None if that is no variable, which the framework will
        refuse. In eager mode it is the frame of the step: training waits for each of these calls,
        and one that is of a known variable, as all are after the first step, needs no more.
        """
        stack = self._calls_under_way.stack()
        top = stack[-1] if stack else None
        if top is not None and top.place is EAGER and not top.distributed and compat.in_eager():
            step = top.parent if top.gathers and top.parent is not None else top
            if not step.applying:
                number = compat.update_replica_id()
                kind = apply.kind or kind_of_gradient(gradient)
                replica = top.replica if number is None else number
                key = object_key(variable, apply.name, "update", kind, replica, optimizer)
                known = self._sites.of_objects.get(key)
                if known is not None and known[0]() is variable:
                    step.applying = True
                    step.pending = known[1]
                    return step
        frame = Frame()
        frame.recorder = self
        frame.python = _python_frame()
        frame.result = None
        self._place(frame, "apply", stack)
        parent = frame.parent
        kind = apply.kind or kind_of_gradient(gradient)
        role: Role = "apply" if parent is not None and applying(parent) else "update"
        site = self._site_of(frame, optimizer, apply.name, role, kind, variable)
        if site is None:
            return None
        frame.site = site
        if frame.place is not EAGER:
            self._sites.traced(site)
            frame.variable = variable
        stack.append(frame)
        return frame

    def leave_apply(self, frame: Frame, result: Any, failed: bool) -> None:
        """A call of an apply method ends; `frame` is what `enter_apply` returned."""
        if frame.role == "apply":
            frame.result, frame.python = result, None
            self.leave(frame, failed)
            return
        frame.applying = False
        if failed:
            self._sites.failed(frame.pending)
        else:
            frame.sites.append(frame.pending)

    def _place(self, frame: Frame, role: FrameRole, stack: list[Frame]) -> None:
        """Find out where a call is made, and what it is part of."""
        top = stack[-1] if stack else None
        place = EAGER if compat.in_eager() else _place_of(compat.current_graph())
        parent: Frame | None
        if top is not None and not top.distributed and top.place == place:
            distributed, replica = False, top.replica
            parent = top.parent if top.gathers else top
            if role == "apply":
                number = compat.update_replica_id()
                replica = replica if number is None else number
        else:
            distributed = compat.has_strategy()
            replica, parent = 0, None
            if distributed or top is not None or place is not EAGER:
                replica = self._replica(role, top, distributed)
                parent = self._parent(role, place, replica, stack, distributed)
        frame.role = role
        frame.place = place
        frame.replica = replica
        frame.distributed = distributed
        frame.parent = parent
        frame.applying = role == "apply" or (parent is not None and applying(parent))
        frame.gathers = role == "group" and parent is not None and parent.place == place
        frame.site = None
        frame.sites, frame.updates = [], []
        frame.start = 0 if place is EAGER else place.graph.num_operations()
        frame.numbers = frame.stamps = frame.gradient = frame.variable = None
        frame.thread, frame.run = threading.get_ident(), 0
        if distributed:
            frame.run = id(compat.replica_run())

    def _drop_interrupted(self) -> None:
        """Forget calls that an interrupt (Ctrl-C) ended before they could leave."""
        ended = self._calls_under_way.interrupted()
        if ended:
            self.note("a call was interrupted, and what it had run until then is not counted")
            for frame in ended:
                self._ended(frame, ran=False)

    def _ended(self, frame: Frame, ran: bool) -> None:
        """A step is under way no more. Threads share the list: each change to it is atomic."""
        if not ran and frame.numbers:
            self._counters.give_up(frame.numbers)
        if frame in self._calls_under_way.steps:
            self._calls_under_way.steps.remove(frame)

    def _site_of(
        self, frame: Frame, optimizer: int, method: str, role: Role, kind: Kind, variable: Any
    ) -> int | None:
        """The site of a variable, None if it is none; known ones are found by its id, fast."""
        replica = frame.replica
        eager = frame.place is EAGER
        if eager:
            key = object_key(variable, method, role, kind, replica, optimizer)
            known = self._sites.of_objects.get(key)
            if known is not None and known[0]() is variable:
                return known[1]
        if not (hasattr(variable, "name") and hasattr(variable, "dtype")):
            return None
        index = self._variables.index(variable, frame.place.graph)
        if replica not in self._devices:
            self._devices[replica] = device_of(variable)
        site = self._sites.number(optimizer, method, role, kind, index, replica)
        if eager:
            self._sites.of_objects[key] = (ref(variable), site)
        return site

    def requests(
        self, frame: Frame, optimizer: int, method: str, pairs: Iterable[Any]
    ) -> Iterator[Any]:
        """`pairs`, gradients with their variables, which reached the outermost step method `frame`.

        A pair is noted when it is taken. In eager mode each step usually has those of the one
        before, in their order.
        """
        key = optimizer, method, frame.replica
        order = self._sites.orders.get(key, ()) if frame.place is EAGER else ()
        changed: list[Requested] | None = None
        for place, pair in enumerate(pairs):
            known = order[place] if place < len(order) else NOT_REQUESTED
            if (
                type(pair) is tuple
                and len(pair) == 2
                and type(pair[0]) is known[0]
                and known[1]() is pair[1]
            ):
                frame.sites.append(known[2])
            else:
                known = NOT_REQUESTED
                try:
                    known = self._request(frame, optimizer, method, pair)
                except Exception as error:
                    self.fault(error)
                if changed is None and frame.place is EAGER:
                    changed = list(order[:place])
            if changed is not None:
                changed.append(known)
            yield pair
        if changed is not None:
            self._sites.orders[key] = tuple(changed)

    def _request(self, frame: Frame, optimizer: int, method: str, pair: Any) -> Requested:
        """Note one pair that is not what the step before had in its place."""
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            return NOT_REQUESTED  # the framework will refuse it
        gradient, variable = pair
        kind = kind_of_gradient(gradient)
        site = self._site_of(frame, optimizer, method, "request", kind, variable)
        if site is None:
            return NOT_REQUESTED
        frame.sites.append(site)
        if frame.place is EAGER:
            return type(gradient), ref(variable), site
        if frame.gradient is None:
            frame.gradient = compat.tensor_of(gradient)
        return NOT_REQUESTED

    def leave(self, frame: Frame, failed: bool) -> None:
        """A call ends; a block that it closes is counted: now in eager mode, else in its graph."""
        stack = self._calls_under_way.stack()
        if stack and stack[-1] is frame:
            stack.pop()
        else:  # something between entered and left out of order
            stack[:] = [each for each in stack if each is not frame]
        sites, site, parent = frame.sites, frame.site, frame.parent
        ran = not failed or any(self._sites.sites[number].role != "request" for number in sites)
        if site is not None:
            if ran:  # what raises after a part of its work ran was executed, as far as it came
                sites.append(site)
            elif frame.place is EAGER:
                self._sites.failed(site)
        if ran and sites:
            if frame.variable is not None and not compat.eager_outside_functions():
                self._note_update(frame)
            if parent is not None and (parent.place is frame.place or parent.place == frame.place):
                parent.sites += sites
                parent.updates += frame.updates
            else:
                self._close(frame)
        if frame.role == "step":  # until now, for who reads meanwhile
            self._ended(frame, ran)
        frame.gradient = frame.stamps = frame.variable = None

    def _replica(self, role: FrameRole, top: Frame | None, distributed: bool) -> int:
        number = None
        if distributed:
            number = compat.update_replica_id() if role == "apply" else None
            number = compat.replica_id() if number is None else number
        if number is None:  # no strategy, or a call for all replicas
            number = top.replica if top is not None else 0
        return number

    def _parent(
        self,
        role: FrameRole,
        place: Place,
        replica: int,
        stack: list[Frame],
        distributed: bool,
    ) -> Frame | None:
        """The frame that a call is part of: that of its replica in its region, if there is one.

        It may be on another thread. A strategy runs the update, and the inner optimizer of a loss
        scale, on other threads than the `apply_gradients` that asked for it. In a graph that step
        is the one whose graph is this one or around it: no other thread traces into it. In eager
        mode it is one on whose behalf this thread works.
        """
        region = place.region
        own = next((each for each in reversed(stack) if each.place.region is region), None)
        if own is not None and own.role != "group":
            return own
        steps: list[Frame] = []
        active = list(self._calls_under_way.steps)
        if active and place.graph is not None:
            around = {id(graph) for graph in compat.graphs_around(place.graph)}
            steps = [
                step
                for step in active
                if step.place.region is region and id(step.place.graph) in around
            ]
        elif active and distributed:
            runs, threads = compat.runs_under_way()
            steps = [
                step
                for step in active
                if step.place is EAGER and (step.run in runs or step.thread in threads)
            ]
        mine = [step for step in steps if step.replica == replica]
        if own is not None:
            return next((step for step in reversed(mine) if step.place == place), own)
        if role == "step":
            return mine[-1] if mine else None
        candidates = mine or steps
        return candidates[-1] if candidates else None

    # What a block is part of.

    def _company(self, replica: int) -> Any:
        """The stamp of what calls a function with a block of `replica`: asked at each call.

        In eager mode an eager tensor; while another function is traced a tensor in its graph.
        """
        ledger = self._counters.ledgers[replica]
        try:
            stack = self._calls_under_way.stack()
            if compat.in_eager():
                place = EAGER
                self._callers.add(threading.get_ident())
            else:
                place = _place_of(compat.current_graph())
            frame = self._parent("apply", place, replica, stack, compat.has_strategy())
            if place is not EAGER:
                return self._stamp_inside(frame, place, replica, calling=True)
            if frame is None:
                return ledger.alone
            step = self._calls_under_way.step_around(frame, replica)
            stamp = 0 if step is None else UNIT * self._number_of(step, replica) | WITHIN
            if applying(frame):
                stamp |= APPLYING
            return compat.constant(stamp) if stamp else ledger.alone
        except Exception as error:
            self.fault(error)
            return ledger.alone

    def _number_of(self, step: Frame, replica: int) -> int:
        """The number of a step in eager mode, which it takes when it is asked for first."""
        if step.numbers is None:
            step.numbers = {}
        number = step.numbers.get(replica)
        if number is None:
            number = step.numbers[replica] = self._counters.take_number(replica)
        return number

    def _stamps_of(self, step: Frame, replica: int) -> tuple[Any, Any]:
        """The stamp of a step in a graph, and that of what is part of it."""
        if step.stamps is None:
            step.stamps = {}
        stamps = step.stamps.get(replica)
        if stamps is None:
            ledger, graph = self._ledger(replica), step.place.graph
            after = [] if step.gradient is None else [step.gradient]
            with graph.as_default():
                company = self._asked(step.place.region, replica)
                stamps = step.stamps[replica] = ledger.begin_step(company, after)
        return stamps

    def _stamp_inside(
        self, frame: Frame | None, place: Place, replica: int, calling: bool = False
    ) -> Any:
        """The stamp of what is part of `frame`, or of nothing in its region, in a graph.

        `calling` if it is for a function that is called, which cannot know what calls it.
        """
        step = None if frame is None else self._calls_under_way.step_around(frame, replica)
        if step is None:
            stamp = self._asked(place.region, replica)
        else:
            stamp = self._stamps_of(step, replica)[1]
        if calling and frame is not None and applying(frame):
            stamp = compat.with_flags(stamp, APPLYING)
        return stamp

    def _asked(self, region: Any, replica: int) -> Any:
        """The company of the function whose graph is `region`, a tensor of that graph."""
        return self._ledger(replica).company(region, partial(self._company, replica))

    def _ledger(self, replica: int) -> Ledger:
        return self._counters.ledger(replica, self._devices.get(replica, ""))

    # Blocks.

    def _close(self, frame: Frame) -> None:
        alone = frame.parent is None and frame.role == "step"
        graph = frame.place.graph
        if graph is None and not frame.distributed:
            self._ran(CountedBlock(frame.replica, "", alone, tuple(frame.sites)), frame)
            return
        by_replica: dict[int, list[int]] = defaultdict(list)
        for number in frame.sites:
            by_replica[self._sites.sites[number].replica].append(number)
        name = "" if graph is None else compat.function_name(graph)
        for replica, numbers in by_replica.items():
            block = CountedBlock(replica, name, alone, tuple(numbers))
            if graph is None:
                self._ran(block, frame)
            elif compat.eager_outside_functions():
                self._count_in_graph(block, frame)
            else:
                self._count_in_session(block, frame)

    def _ran(self, block: CountedBlock, frame: Frame) -> None:
        """A block in eager mode has just been executed, a step or a call outside of every step."""
        with self._counters.lock:  # who reads finds the number in the log, or not taken
            stamp = UNIT * self._number_of(frame, block.replica) if block.step else 0
            self._counters.log(block, stamp)

    def _count_in_graph(self, block: CountedBlock, frame: Frame) -> None:
        """Count a block in its graph, once its work is done: a step that fails is none.

        The counter waits for the stateful ops that were added since the call began, the updates;
        without that TensorFlow may run it although the gradients, or the data for them, never came.
        """
        graph = frame.place.graph
        if block.step:
            stamp = self._stamps_of(frame, block.replica)[0]
        else:
            stamp = self._stamp_inside(frame.parent, frame.place, block.replica)
        lifetime = compat.graphs_around(graph)[-1]
        work = compat.updates_since(graph, frame.start)
        use = self._ledger(block.replica).count(block, lifetime, stamp, work)
        with self._counters.lock:
            self._tracings.add(graph, block.replica, block.step, use, self._counters.steps)

    def _count_in_session(self, block: CountedBlock, frame: Frame) -> None:
        """Count a block of a v1 graph on the host: it has no variable that needs no initializer.

        The callback becomes a control input of the op that the method returned, so that this op,
        which the user's program runs, and its name stay what they were.
        """
        self._counters.session_graphs[block] += 1
        inside = frame.parent is not None
        if self.optimizers.kinds() & {"keras2", "keras3"}:
            self.note(
                "an optimizer of Keras 2.11 or later was applied in a v1 graph: what it returns "
                "does not run its updates, so a Session that runs it updates nothing, and nothing "
                "is counted; use tf_keras.optimizers.legacy or tf.compat.v1.train"
            )
            return
        result = getattr(frame.result, "op", frame.result)
        if not hasattr(result, "_add_control_input"):
            self.note(
                "a method returned no operation in a v1 graph, so its executions could not be "
                "counted: return the operation that applies the gradients"
            )
            return
        before = [*result.control_inputs, *(tensor.op for tensor in result.inputs)]
        with compat.control_dependencies(before):
            callback = compat.host_callback(partial(self._ran_in_session, block, inside))
        result._add_control_input(getattr(callback, "op", callback))
        if block.step and frame.updates:
            self._parts.add(frame.place.region, result, frame.updates)

    def _note_update(self, frame: Frame) -> None:
        """Remember which ops an update is in the graph of a Session, which may run them alone."""
        result = getattr(frame.result, "op", frame.result)
        ops = compat.updates_of(frame.place.graph, frame.start, frame.variable)
        if frame.site is not None and self._sites.sites[frame.site].role == "update":
            if hasattr(result, "_add_control_input"):
                ops.append(result)
            frame.updates.append((ops, frame.site))

    def _ran_without_step(self, site: int) -> None:
        """A Session has run an update of a step, but not the step."""
        replica = self._sites.sites[site].replica
        self._counters.log(CountedBlock(replica, compat.SESSION_GRAPH, False, (site,)), 0)

    def _ran_in_session(self, block: CountedBlock, inside: bool) -> None:
        """A block of a v1 graph is about to end; `inside` if it is part of a step."""
        if block.step:
            stamp = UNIT * self._counters.take_number(block.replica)
        else:  # its step ends, and takes its number, after it
            stamp = UNIT * self._counters.next_number(block.replica) | WITHIN if inside else 0
        self._counters.log(block, stamp)

    # Faults and notes.

    def note(self, text: str) -> None:
        """Say in the trace that something was not seen."""
        self._notes.setdefault(text)

    def fault(self, error: BaseException) -> None:
        """Something failed in the tracer itself: say so once, and let training go on untraced."""
        if self.broken:
            return
        self.broken = True
        step = self._step_count() + 1
        self.note(
            f"the tracer failed with {type(error).__name__}: {error}; nothing is counted from step "
            f"{step} on"
        )
        text = (
            f"tracer: {type(error).__name__}: {error}. Training goes on, untraced from step {step} "
            "on. This is a bug in tracer: please report it."
        )
        try:
            warnings.warn(text, RuntimeWarning, stacklevel=4)
        except RuntimeWarning:  # warnings are errors here, but this one must not stop training
            print(text, file=sys.stderr)

    def _step_count(self) -> int:
        try:
            return self._counters.steps()
        except Exception:
            return 0  # asked after a fault too, and the ledger may be what is broken

    # Reading.

    def children(self) -> dict[str, Any]:
        """The counters' variables, for an exported function that captures them."""
        return self._counters.variables()


def _python_frame() -> Any:
    """Python's frame of the apply method that is about to run."""
    python: Any = sys._getframe(3)
    while python.f_globals.get("__name__", "").startswith("tensorflow.python.autograph."):
        python = python.f_back  # of AutoGraph, which makes the calls of a method that it converted
    return python


def kind_of_gradient(gradient: Any) -> Kind:
    """`sparse` for `tf.IndexedSlices`, `none` for None, else `dense`."""
    if type(gradient) is compat.EagerTensor:
        return "dense"  # the others are slow to find out
    if gradient is None:
        return "none"
    return "sparse" if isinstance(gradient, compat.IndexedSlices) else "dense"


def _place_of(graph: Any) -> Place:
    branch = None if isinstance(graph, compat.FuncGraph) else graph._get_control_flow_context()
    return Place(graph, branch, compat.called_graph(graph))
